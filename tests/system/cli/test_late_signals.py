"""Signals that come when a run is over change nothing; in the midst of a sweep they end it, whenever they come."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.command import PATIENCE_S, start, summary, wait_until

SMALL = "experiment=quadratic nodes=2 budget.steps=30 eval.every_steps=10"
CTRL_C, OTHERS = (signal.SIGINT,), (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@pytest.mark.parametrize(("engine", "numbers"), [("sim", OTHERS), ("dist", CTRL_C)])
def test_a_run_that_is_over_has_its_own_exit_status(
    tmp_path: Path, engine: str, numbers: Sequence[signal.Signals]
) -> None:
    """They come again and again from the moment on at which its summary is there."""
    process = start(f"dsgd-run {SMALL} engine={engine} hydra.run.dir=run", tmp_path)
    wait_until((tmp_path / "run" / "summary.json").exists, process)
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None:
        assert time.monotonic() < deadline
        for number in numbers:
            process.send_signal(number)
        time.sleep(0.0005)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert out.splitlines()[-1] == f"record: {tmp_path / 'run'}"
    assert "completed" in out
    assert summary(tmp_path / "run")["status"] == "completed"


def test_a_signal_when_a_job_is_over_ends_the_sweep(tmp_path: Path) -> None:
    """It is for the sweep, though the process that it was passed on to has nothing left to end."""
    process = start(f"dsgd-run -m {SMALL} engine=sim seed=range(12) hydra.sweep.dir=swept", tmp_path)
    wait_until((tmp_path / "swept" / "0_sync_2" / "summary.json").exists, process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    begun = [path for path in (tmp_path / "swept").iterdir() if (path / "metrics.jsonl").exists()]
    assert len(begun) < 12
    assert out.count("record: ") == len(begun)
    assert summary(tmp_path / "swept" / "0_sync_2")["status"] == "completed"
