"""A run that has used up its budget goes on with a larger one, as if it had had that from the beginning."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dsgd.record.writer import Record
from tests.support.command import Result, call, marks, summary

RUN = [
    "cluster.gradient_s=0.01", "cluster.jitter=0.2", "nodes=4", "batch_size=4", "model.hidden=[4]",
    "optimizer.momentum=0.5", "engine=sim",
]  # fmt: skip
KEPT = "engine.keep_checkpoint=true"


def run(folder: Path, *options: str) -> Result:
    return call(*RUN, *options, f"hydra.run.dir={folder}")


def without(values: dict[str, object], *keys: str) -> dict[str, object]:
    return {key: value for key, value in values.items() if key not in keys}


@pytest.mark.parametrize(
    ("options", "budget", "larger"),
    [
        (["algo=delayfree", "schedule=step", "schedule.milestones=[1.5]"], "budget.epochs=1", "budget.epochs=2"),
        (["algo=dpsgd", "budget.epochs=null", "eval.every_time_s=0.1"], "budget.time_s=0.35", "budget.time_s=0.8"),
    ],
)
def test_it_becomes_the_run_that_had_the_larger_budget(
    options: list[str], budget: str, larger: str, tmp_path: Path
) -> None:
    """To the last bit: in the marks from before, in those that follow, and in the summary, which says what was done."""
    assert run(tmp_path / "long", *options, larger).status == 0
    assert run(tmp_path / "short", *options, budget, KEPT).status == 0
    before = marks(tmp_path / "short")
    extended = call(f"resume={tmp_path}/short", larger)
    assert extended.status == 0, extended.err
    whole = marks(tmp_path / "long")
    assert marks(tmp_path / "short") == whole
    assert before[:-1] == whole[: len(before) - 1]  # the last one was the end, which is evaluated in more detail
    found = summary(tmp_path / "short")
    assert without(found, "extended") == summary(tmp_path / "long")
    key, value = budget.removeprefix("budget.").split("=")
    assert [changed[key] for changed in found["extended"]] == [float(value)]


def test_it_can_go_on_twice_and_elsewhere_and_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path / "long", "budget.epochs=3").status == 0
    assert run(tmp_path / "first", "budget.epochs=1", KEPT).status == 0
    assert call(f"resume={tmp_path}/first", "budget.epochs=2", f"hydra.run.dir={tmp_path}/second").status == 0
    assert summary(tmp_path / "first")["epochs"] == pytest.approx(1, abs=0.1)  # is as it was
    mark = Record.mark

    def interrupted(record: Record, values: dict[str, object]) -> dict[str, object]:
        os.kill(os.getpid(), signal.SIGTERM)
        return mark(record, values)

    with monkeypatch.context() as patched:
        patched.setattr(Record, "mark", interrupted)
        assert call(f"resume={tmp_path}/second", "budget.epochs=3").status == 130
    assert call(f"resume={tmp_path}/second").status == 0
    assert marks(tmp_path / "second") == marks(tmp_path / "long")
    assert [budget["epochs"] for budget in summary(tmp_path / "second")["extended"]] == [1, 2]


@pytest.fixture(scope="module")
def completed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completed") / "run"
    assert run(folder, "budget.epochs=1", "schedule=cosine", KEPT).status == 0
    return folder


def test_what_would_not_be_one_run_is_refused(completed: Path) -> None:
    before = {path.name: path.read_bytes() for path in completed.iterdir() if path.is_file()}
    for override, rule in {
        "budget.epochs=2": "budget must stay as in the checkpoint to resume from with schedule=cosine, whose rates",
        "budget.epochs=0.5": "budget.epochs must be >= 1, as in the checkpoint to resume from, got 0.5",
        "budget.steps=900": "budget.steps must be null, as in the checkpoint to resume from, got 900",
        "budget.epochs=some": "budget must stay as in the checkpoint to resume from with schedule=cosine",
        "budget.epochs=1": "budget must be larger than that of the run in ",
        "seed=0": "resume must be an interrupted run, got ",
    }.items():
        refused = call(f"resume={completed}", override)
        assert (refused.status, len(refused.err.splitlines())) == (2, 1)
        assert refused.err.startswith(rule)
        assert {path.name: path.read_bytes() for path in completed.iterdir() if path.is_file()} == before
