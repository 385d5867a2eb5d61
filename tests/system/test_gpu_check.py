"""The script for machines with a GPU runs without one, too, and says what it skips."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.sh"
LIMIT_S = 300

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: run scripts/gpu_check.sh")


def check(*parts: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(
        [str(SCRIPT), *parts], capture_output=True, text=True, env=environment, timeout=LIMIT_S, check=False
    )


@without_gpu
def test_what_needs_no_gpu_runs_and_the_rest_is_said_to_be_skipped() -> None:
    done = check("devices", "gradients", "dropout", "graphs", "threshold", "streams", "step")
    assert done.returncode == 0, done.stdout
    for part in ("dropout", "threshold", "graphs", "streams", "step"):
        assert f"{part}: skipped: no GPU" in done.stdout.splitlines()
    assert "TOO LARGE" not in done.stdout
    assert "simulator, graph" in done.stdout


def test_an_unknown_part_is_one_line() -> None:
    done = check("gradient")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("PART must be devices, gradients, ")
