"""The same bytes from separate processes, by the command that a user types: all algorithms, at two rates."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.support.cases import ALGORITHMS

COMMAND = Path(sys.executable).with_name("dsgd-run")
SMALL = (
    "experiment=quadratic engine=sim nodes=4 cluster.jitter=0.3 cluster.message_bytes=1e6 cluster.slow_nodes={1:4.0}"
)
STEPS = "budget.steps=60 eval.every_steps=5"

GOOD, HOPELESS = 0.1, 1e30


class Sweep:
    """All algorithms, each at all these rates, in one process of its own."""

    def __init__(self, folder: Path, hash_seed: int, *rates: float) -> None:
        self.folder = folder
        self.rates = rates
        jobs = [f"algo={','.join(ALGORITHMS)}", f"optimizer.lr={','.join(map(str, rates))}"]
        ended = subprocess.run(
            [COMMAND, "-m", *SMALL.split(), *STEPS.split(), *jobs, f"hydra.sweep.dir={folder}"],
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ended.returncode == 0, ended.stderr

    def record(self, algo: str, rate: float) -> Path:
        """Jobs are numbered with the last key running fastest."""
        number = ALGORITHMS.index(algo) * len(self.rates) + self.rates.index(rate)
        return self.folder / f"{number}_{algo}_4"


def strict(text: str) -> dict[str, Any]:
    """JSON as the standard has it: without NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def without_host_time(metrics: Path) -> bytes:
    return re.sub(rb'"wall_s": [0-9.e+-]+,? ?', b"", metrics.read_bytes())


def test_two_processes_write_the_same_bytes_apart_from_host_time(tmp_path: Path) -> None:
    """With different orders of hashing. The second has a hopeless rate, too: a diverged run leaves a whole record."""
    sweeps = Sweep(tmp_path / "one", 1, GOOD), Sweep(tmp_path / "two", 2, GOOD, HOPELESS)
    for algo in ALGORITHMS:
        one, other = (sweep.record(algo, GOOD) for sweep in sweeps)
        metrics = without_host_time(one / "metrics.jsonl")
        assert metrics == without_host_time(other / "metrics.jsonl")
        assert b"wall_s" not in metrics
        assert metrics.count(b"\n") in (13, 14)  # one more where the workers average after their last step
        summaries = [strict((folder / "summary.json").read_text()) for folder in (one, other)]
        assert all(summary.pop("wall_s") >= 0 for summary in summaries)
        assert summaries[0] == summaries[1]
        assert (one / "config.yaml").read_bytes() == (other / "config.yaml").read_bytes()
        assert_whole(sweeps[1].record(algo, HOPELESS), other, algo)


def assert_whole(folder: Path, completed_folder: Path, algo: str) -> None:
    """Status `diverged`, every line JSON, every field that a completed run has; what is not a number is null."""
    lines = [strict(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = strict((folder / "summary.json").read_text())
    completed = strict((completed_folder / "summary.json").read_text())
    assert (summary["status"], completed["status"]) == ("diverged", "completed")
    assert summary.keys() == completed.keys()
    fields = strict((completed_folder / "metrics.jsonl").read_text().splitlines()[0]).keys()
    assert all(line.keys() == fields for line in lines)
    assert (summary["time_s"], summary["samples"]) == (lines[-1]["time_s"], lines[-1]["samples"])
    assert summary["samples"] < completed["samples"] == 60 * 4
    assert lines[0]["train_loss"] > 0
    assert yaml.safe_load((folder / "config.yaml").read_text())["algo"]["name"] == algo
    assert strict((folder / "env.json").read_text())["python"]
