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


@pytest.mark.long
@without_gpu
def test_what_needs_no_gpu_runs_and_the_rest_is_said_to_be_skipped() -> None:
    done = check("devices", "gradients", "dropout", "graphs", "threshold", "streams", "step")
    assert done.returncode == 0, done.stdout
    for line in (
        "dropout: skipped: no GPU",
        "threshold: skipped: no GPU",
        "graphs: skipped: no GPU",
        "streams: skipped: no GPU",
        "step: skipped: no GPU",
    ):
        assert line in done.stdout.splitlines()
    assert "TOO LARGE" not in done.stdout
    assert "simulator, graph" in done.stdout


def test_an_unknown_part_is_one_line() -> None:
    done = check("gradient")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("PART must be devices, gradients, ")


def test_what_fails_is_named_at_the_end(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    done = subprocess.run(
        [str(SCRIPT), "devices", "graphs"], capture_output=True, text=True, env={**os.environ, "PYTHON": str(python)}
    )
    assert done.returncode == 1
    assert done.stdout.count("FAILED with status 3") == 2
    assert done.stdout.splitlines()[-1].count("benchmarks/gpu.py") == 2


def test_rows_of_the_parts_are_one_table_at_the_end(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nprintf 'ROW\\tbits\\tthe same\\tfalse\\tNO\\n'; exit 1\n")
    python.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(python)}
    done = subprocess.run([str(SCRIPT), "streams"], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "ROW" not in done.stdout
    begin = done.stdout.splitlines().index("FAILED with status 1") + 1
    lines = [line.replace("\t", " ").split() for line in done.stdout.splitlines()[begin:]]
    assert ["bits", "the", "same", "false", "NO"] in lines
    assert [line[-1] for line in lines if line[0] == "streams"] == ["NO"]
