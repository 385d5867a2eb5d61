from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dsgd.comparison.contenders import Contender, rank_contenders
from dsgd.comparison.run_noise import late_slope, noise_line, pooled_deviation
from tests.support.contenders import contender


def with_losses(name: str, losses: list[float], slope: float) -> Contender:
    """A contender without a target, of 100 steps, whose loss falls evenly to these values, one for each seed."""
    made = contender(name, [1.0] * len(losses), target=None, status="completed", steps=100, samples=1600)
    runs = []
    for run, loss in zip(made.runs, losses, strict=True):
        marks = [{"samples": 16 * step, "test_loss": loss + slope * (100 - step)} for step in range(0, 101, 5)]
        runs.append(replace(run, metrics=marks, summary={**(run.summary or {}), "test_loss": loss}))
    return replace(made, runs=runs)


def test_the_deviation_is_about_each_group_s_own_mean() -> None:
    assert pooled_deviation([[1.0, 3.0], [11.0, 13.0], [5.0]]) == pytest.approx(math.sqrt(2))
    assert pooled_deviation([[0.0, 0.0, 3.0], [7.0, 9.0]]) == pytest.approx(math.sqrt((6 + 2) / 3))
    assert math.isnan(pooled_deviation([[1.0], []]))


def test_the_slope_is_that_of_the_last_quarter_per_step() -> None:
    (run,) = with_losses("sync", [0.4], 0.002).runs
    assert late_slope(run) == pytest.approx(0.002)
    early = [{"samples": 0, "test_loss": 50.0}, *run.metrics[1:]]
    assert late_slope(replace(run, metrics=early)) == pytest.approx(0.002)
    assert math.isnan(late_slope(replace(run, metrics=run.metrics[-1:])))


def test_the_line_has_deviation_slope_and_rule() -> None:
    result = rank_contenders([with_losses("sync", [0.4, 0.42], 0.002), with_losses("gossip", [0.5, 0.52], 0.002)])
    assert noise_line(result) == (
        "noise of one run: its loss at the end has a standard deviation of 0.014 and falls by 0.002 a step; "
        "(difference + 0.002 × steps saved) / (0.014 √(1/n₁ + 1/n₂)) above 19.2 is more than noise"
    )


def test_there_is_no_line_for_times_and_for_one_seed() -> None:
    assert not noise_line(rank_contenders([contender("sync", [1.0, 2.0]), contender("gossip", [2.0, 3.0])]))
    assert not noise_line(rank_contenders([with_losses("sync", [0.4], 0.0), with_losses("gossip", [0.5], 0.0)]))
