"""A sample of the logged runs, made again: times, bytes and counts are equal, losses as near as float allows."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsgd.record.reader import Run, find_runs
from dsgd.runner.configuration import CHOICES, EngineOptions
from studies.reproduction import archive

RESULTS = Path(__file__).resolve().parents[3] / "results" / "papers"
ARCHIVES = sorted(RESULTS.glob(f"*{archive.SUFFIX}"))
MOST_WORK = 3e5  # samples of a run with gradients: seconds
EQUAL = ("status", "clock", "time_s", "samples", "steps", "bytes_sent_total", "bytes_sent_max_node", "staleness_max")
# keys that came after some of the runs, and change none of their numbers
LATER = {"track": [], "tensorboard": {"timeout_s": 60}, "mlflow": {"uri": None, "experiment": "dsgd", "timeout_s": 60}}
NEAR = {"fp64": 1e-9, "fp32": 0.05}  # relative: 32 bits differ between processors, and training makes more of it
PROGRAM = """
import sys
import yaml
from pathlib import Path
from dsgd.engines.execute import execute
from dsgd.runner.plan import plan_run
values = yaml.safe_load(sys.stdin)
print(execute(plan_run(values, []), Path(sys.argv[1])))
"""


def sample(path: Path) -> Run:
    """Return a run of an archive, the same one as long as the archive is the same. Skips the test if all are long."""
    runs = [run for rows in archive.read(path).values() for run in archive.logged_of(rows).runs]
    cheap = [run for run in runs if _is_cheap(run)]
    return random.Random(path.name).choice(cheap) if cheap else pytest.skip("all its runs are long")


def _is_cheap(run: Run) -> bool:
    simulated = run.setting("cluster.gradient_s") is not None and run.clock == "virtual"
    timing_only = run.setting("engine.gradients") == "none"
    if run.setting("data.path") is not None:
        return False  # its text is not everywhere
    return simulated and (timing_only or run.final("samples") <= MOST_WORK)


def engine_of(run: Run) -> dict[str, Any]:
    """Return the engine's options by which to make a logged run."""
    options = {field.name for field in fields(EngineOptions)} | {"name"}
    evaluator = run.final("gradients")
    engine = {key: value for key, value in run.config["engine"].items() if key in options}
    return {**engine, "gradients": evaluator if evaluator in CHOICES["gradients"] else "auto"}


@pytest.mark.parametrize("paper", ARCHIVES, ids=lambda path: path.name)
def test_a_logged_run_made_again_is_the_same(tmp_path: Path, paper: Path) -> None:
    """Gradients are computed as they were, or by `auto` where the package has the evaluator no more."""
    before = sample(paper)
    given = yaml.safe_dump({**LATER, **before.config, "engine": engine_of(before)})
    line = [sys.executable, "-c", PROGRAM, str(tmp_path / "run")]
    ended = subprocess.run(line, input=given, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    (after,) = find_runs([tmp_path / "run"])
    assert {field: after.final(field) for field in EQUAL} == {field: before.final(field) for field in EQUAL}
    assert [mark["time_s"] for mark in after.metrics] == [mark["time_s"] for mark in before.metrics]
    near = NEAR.get(before.setting("precision"), NEAR["fp32"])
    for field in ("train_loss", "test_loss"):
        if before.final(field) is not None:
            assert after.final(field) == pytest.approx(before.final(field), rel=near, abs=1e-12)
