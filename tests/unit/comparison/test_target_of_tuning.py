"""The target by which a budget is chosen is harder than the one that is measured."""

from __future__ import annotations

import pytest

from dsgd.cli.compose import ConfigTree
from dsgd.comparison.entries import Composer
from dsgd.comparison.options import CompareOptions


@pytest.mark.parametrize(
    ("tuned", "target", "harder"),
    [
        ({"budget.steps": [640, 2560]}, {"loss": 0.3}, {"loss": 0.294}),
        ({"budget.epochs": [5, 20], "optimizer.lr": [0.1, 0.2]}, {"accuracy": 0.9}, {"accuracy": 0.902}),
        ({"optimizer.lr": [0.1, 0.2]}, {"loss": 0.3}, {"loss": 0.3}),
        ({"budget.steps": [640, 2560]}, {}, {"loss": None, "accuracy": None}),
    ],
)
def test_a_budget_is_chosen_by_a_harder_target(
    tuned: dict[str, list[float]], target: dict[str, float], harder: dict[str, float | None]
) -> None:
    """A budget that the target is met in by luck would be missed on the measured seeds; a rate has no such edge."""
    composer = Composer(ConfigTree(), CompareOptions(tune=tuned))
    (entry,) = composer.entries(["algo=sync", *(f"target.{name}={level}" for name, level in target.items())])
    values = tuple(axis.grid[0] for axis in entry.axes)
    ((tuning, *_),) = composer.tuning(entry, [values], None).values()
    measuring, *_ = composer.measuring(entry, values)
    for name, level in harder.items():
        assert tuning.values["target"][name] == (level if level is None else pytest.approx(level))
        assert measuring.values["target"][name] == target.get(name)
