"""SIGTERM while a model is compiled ends a run of every engine at once, not when the compiler is done."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path

import pytest

from tests.support.command import PATIENCE_S, SCRIPTS, start, wait_until
from tests.support.proc import processes

# Its first pass takes as long as a compiler, which is switched off.
SLOW = """
import time
from pathlib import Path
from torch import nn
class Slow(nn.Linear):
    def forward(self, x):
        if self.training and not Path("begun").exists():
            Path("begun").touch()
            time.sleep(1000)
        return super().forward(x.flatten(1))
"""
LINE = "compile=true model=import model.target=slow.Slow budget.steps=10 data=digits cluster.gradient_s=0.01"
LINE += " 'model.arguments={in_features: 64, out_features: 10}' hydra.run.dir=run"


@pytest.mark.parametrize("engine", ["sim", "dist", "torch"])
def test_it_ends(engine: str, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    launcher = "torchrun --nproc-per-node=2 --no-python" if engine == "torch" else ""
    program = shlex.quote(f"{SCRIPTS}/dsgd-run") if launcher else "dsgd-run"
    line = f"{launcher} {program} {LINE} engine={engine} nodes={1 + bool(launcher)}"
    started = start(line, tmp_path, PYTHONPATH=".", TORCH_COMPILE_DISABLE="1")
    wait_until((tmp_path / "begun").exists, started)
    ranks = [process.pid for process in processes() if process.parent == started.pid] if launcher else [started.pid]
    for pid in ranks:
        os.kill(pid, signal.SIGTERM)
    _, err = started.communicate(timeout=PATIENCE_S)
    assert "compile: torch.compile translates the model before the first step" in err
    assert started.returncode != 0
