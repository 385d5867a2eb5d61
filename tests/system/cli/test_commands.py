"""The installed dsgd-run ends at once when its work is done, after whatever was registered for the end of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import shell

OWN = """
import atexit
import sys
from dataclasses import dataclass
from dsgd.worker import Algorithm

atexit.register(lambda: print("at the end"))
atexit.register(lambda: sys.stderr.write("the last word"))

@dataclass(frozen=True)
class Own(Algorithm):
    fails: bool = False

    async def train(self, worker):
        if self.fails:
            raise RuntimeError("it broke")
        while not worker.done:
            worker.step(await worker.gradient())
"""


@pytest.mark.parametrize(("fails", "status"), [("false", 0), ("true", 1)])
def test_what_is_to_be_done_at_the_end_is_done(fails: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    other = "'~algo.overlap' '~algo.backups' '~algo.elastic' algo._target_=own.Own"
    line = f"dsgd-run experiment=quadratic {other} nodes=2 budget.steps=3"
    result = shell(f"{line} +algo.fails={fails} hydra.run.dir=run", tmp_path, PYTHONPATH=str(tmp_path))
    assert result.returncode == status, result.stderr
    assert result.stdout.endswith("at the end\n")
    assert result.stderr.endswith("\nthe last word")
