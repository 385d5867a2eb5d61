"""A run is killed at a fifth of its writes: what it leaves goes on, or says that nothing is left to do.

`tests/system/dist/test_killed_writes.py` kills it at every one, and in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from dsgd.record.checkpoint_file import NAME, CheckpointError, read_header
from dsgd.record.reader import find_runs, read_status
from tests.support.command import call

PATIENCE_S = 500  # after which a test gives up; nothing is measured with it
ROOT = Path(__file__).parents[3]
RUN = ("experiment=quadratic", "algo=sync", "nodes=2", "budget.steps=2", "eval.every_steps=1", "trace=true")
OFTEN = "engine.checkpoint_every_s=0.000001"


def is_held(folder: Path) -> bool:
    """Whether there is what a resumption needs: a whole checkpoint, or the summary of a run that came to its end."""
    try:
        read_header(folder / NAME)
    except (FileNotFoundError, CheckpointError):
        return read_status(folder) == "completed"
    return True


def killed(folder: Path, step: int, *arguments: str) -> list[dict[str, Any]]:
    """What tests/support/killed_writes.py says of its kills."""
    line = [sys.executable, "-m", "tests.support.killed_writes", str(folder), str(step), *arguments]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(text) for text in ended.stdout.splitlines()]


def test_at_every_moment_there_is_a_checkpoint_or_a_summary(tmp_path: Path) -> None:
    assert_goes_on_after_kills(tmp_path, "sim", step=5)


def assert_goes_on_after_kills(tmp_path: Path, engine: str, step: int) -> None:
    kills = killed(tmp_path, step, *RUN, f"engine={engine}", OFTEN)
    left_over = []
    for kill in kills:
        folder = tmp_path / str(kill["number"])
        # 1: it was the coordinator; 0: it had written the summary
        assert kill["first"] in ((-9,) if engine == "sim" else (-9, 1, 0)), kill
        assert kill["second"] == 0, kill
        (run,) = find_runs([folder / "run"])
        assert run.status == "completed", kill
        samples = [mark["samples"] for mark in run.metrics]
        assert samples == sorted(samples), kill
        assert set(samples) == {0, 2, 4}, kill
        if not (folder / "had").exists():
            continue
        assert is_held(folder / "killed"), f"neither is left: {kill}"
        if read_status(folder / "killed") == "completed":
            left_over.append(folder / "killed")
    assert left_over
    for folder in filter(lambda folder: (folder / NAME).exists(), left_over):
        refused = call(f"resume={folder}")
        assert (refused.status, refused.out) == (2, "")
        assert refused.err == (
            f"resume must be an interrupted run, got {folder}, which is completed; "
            f"dsgd-run resume={folder} with a larger budget resumes from its checkpoint\n"
        )
