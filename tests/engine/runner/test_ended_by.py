"""Of several limits of the budget, the first that is reached is named: before the run, in its summary, at its end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dsgd.cli.compose import composed
from dsgd.engines.dist.coordinator.snapshots import NOTHING
from dsgd.engines.rules.marks import Progress, ended_by
from dsgd.runner.plan import plan_run
from tests.support.cases import prepared
from tests.support.command import call

QUADRATIC = ["experiment=quadratic", "nodes=4", "engine=sim"]  # 4 samples an epoch, a step of all is an epoch


def test_the_tighter_limit_is_named_before_the_run() -> None:
    for budget, line in (
        (["steps=20", "epochs=5"], "budget.epochs=5 ends the run after 5 steps, before budget.steps=20"),
        (["steps=3", "epochs=5"], "budget.steps=3 ends the run after 3 steps, before budget.epochs=5"),
        (
            ["steps=9", "epochs=5", "samples=30"],
            "budget.epochs=5 ends the run after 5 steps, before budget.samples=30 and budget.steps=9",
        ),
        (["steps=5", "epochs=5"], None),  # at once
        (["steps=5", "time_s=1e-3"], None),  # only the run itself can tell
    ):
        lines = plan_run(composed([*QUADRATIC, *(f"budget.{limit}" for limit in budget)]), []).why.splitlines()
        named = [text.partition(";")[0] for text in lines if "ends the run" in text]
        assert named == ([] if line is None else [line])


def test_the_default_budget_is_named_where_steps_are_given() -> None:
    """As reported: 200 steps were asked for, and 20 epochs, the default, ended the run at 56."""
    why = plan_run(composed(["budget.steps=200", "nodes=32"]), []).why
    assert "budget.epochs=20 ends the run after 56 steps, before budget.steps=200; budget.epochs=null lifts it" in why


def test_of_two_limits_that_are_reached_at_once_the_samples_count() -> None:
    experiment = prepared(*QUADRATIC, "algo=sync", "budget.steps=6", "budget.time_s=2")
    for samples, named in ((24, "budget.steps"), (20, "budget.time_s")):
        at_the_end = replace(NOTHING, time_s=2.0, samples=samples)
        assert ended_by(experiment, Progress(), "completed", at_the_end) == named


@pytest.mark.parametrize(("engine", "algo"), [("sim", "gossip"), ("dist", "sync")])
@pytest.mark.parametrize(
    ("budget", "ended_by"),
    [
        (["budget.steps=6", "budget.epochs=3"], "budget.epochs"),
        (["budget.steps=6", "budget.epochs=null"], "budget.steps"),
        (["budget.steps=null", "budget.samples=12"], "budget.samples"),
        (["budget.steps=1000000", "budget.time_s=1e-3"], "budget.time_s"),
        (["budget.steps=6", "target.loss=1e9", "target.stop=true"], "target"),
        (["budget.steps=6", "optimizer.lr=1e9"], "divergence"),
    ],
)
def test_the_summary_names_what_ended_the_run(
    budget: list[str], ended_by: str, algo: str, engine: str, tmp_path: Path
) -> None:
    result = call(*QUADRATIC, f"algo={algo}", f"engine={engine}", *budget, f"hydra.run.dir={tmp_path}/run")
    assert result.status == 0, result.err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["ended_by"] == ended_by


def test_the_last_line_names_the_limit_where_there_are_several(tmp_path: Path) -> None:
    several = call(*QUADRATIC, "budget.steps=6", "budget.epochs=3", f"hydra.run.dir={tmp_path}/several")
    assert "sync: completed after 3 steps, ended by budget.epochs=3\n" in several.err
    alone = call(*QUADRATIC, "budget.steps=6", f"hydra.run.dir={tmp_path}/alone")
    assert "ended by" not in alone.err
