"""An experiment is run from Python, without Hydra and without a command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dsgd.cli.compose import composed
from dsgd.engines.execute import execute
from dsgd.runner.configuration import configure
from dsgd.runner.plan import plan_run
from tests.support.command import call, marks, summary

SMALL = ["experiment=quadratic", "algo=gossip", "nodes=3", "budget.steps=12", "engine=sim"]


def test_it_is_what_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = composed(SMALL)
    assert call(*SMALL, f"hydra.run.dir={tmp_path}/typed").status == 0
    monkeypatch.setattr(sys, "argv", ["a program of somebody else"])
    (tmp_path / "called").mkdir()
    assert execute(plan_run(values, []), tmp_path / "called") == "completed"
    assert sys.argv == ["a program of somebody else"]
    assert marks(tmp_path / "called") == marks(tmp_path / "typed")
    assert summary(tmp_path / "called") == summary(tmp_path / "typed")


def test_a_configuration_is_built_once_and_typed() -> None:
    config = configure(composed([*SMALL, "engine=dist", "engine.timeout_s=7", "wandb.project=mine"]))
    assert (config.experiment.nodes, config.engine.name, config.engine.timeout_s) == (3, "dist", 7.0)
    assert config.wandb.project == "mine"
    with pytest.raises(AttributeError):
        config.engine.timeout_s = 8.0  # pyright: ignore[reportAttributeAccessIssue]


def test_momentum_that_no_server_sees_is_warned_of() -> None:
    """In one line beside the choice of the engine; so a sweep says it once."""
    for options, found in (
        (("algo=downpour", "optimizer.momentum=0.9"), "optimizer.momentum=0.9 has no effect with"),
        (("algo=downpour", "optimizer.momentum=0.9", "algo.n_fetch=3"), "optimizer.momentum=0.9 acts between two"),
        (("algo=downpour", "optimizer.momentum=0"), None),
        (("algo=gossip", "optimizer.momentum=0.9"), None),
    ):
        engine, *rest = plan_run(composed([*SMALL, *options]), []).why.splitlines()
        assert engine.startswith("engine: sim")
        assert [line[: len(f"warning: {found}")] for line in rest] == ([] if found is None else [f"warning: {found}"])
