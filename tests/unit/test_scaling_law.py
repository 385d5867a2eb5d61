"""Laws of size: forecasts hold the truth as often as they say, and a law that bends is found out."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from dsgd.comparison.scaling_law import fit_law, mean_of

NOISE = 0.03
Truth = Callable[[float], float]


def simulated(truth: Truth, sizes: list[float], seeds: int, rng: np.random.Generator) -> list[list[float]]:
    return [list(truth(size) * np.exp(NOISE * rng.standard_normal(seeds))) for size in sizes]


@pytest.mark.parametrize(
    ("truth", "sizes", "ladders"),
    [
        (lambda size: 100 * size**-0.5 + 4, [16, 32, 64], 500),
        (lambda size: 100 * size**-0.4, [16, 32, 64, 128], 150),
        (lambda size: 20 + 100 * size**-0.5, [8, 16, 32, 64, 128], 150),
        (lambda size: 3 + 0.5 * size**0.7, [4, 8, 16, 32], 150),
    ],
    ids=["three sizes", "a plain power", "a large offset", "growing"],
)
def test_forecasts_hold_the_truth_in_90_to_98_of_100_ladders(truth: Truth, sizes: list[float], ladders: int) -> None:
    rng = np.random.default_rng(61)
    held = called_bent = 0
    for _ in range(ladders):
        law = fit_law(sizes, simulated(truth, sizes, 4, rng))
        called_bent += law.bends
        ahead = law.forecast(2 * sizes[-1])
        (measured,) = simulated(truth, [2 * sizes[-1]], 4, rng)
        held += ahead.low <= mean_of(measured).median <= ahead.high
    assert 0.90 * ladders <= held <= 0.985 * ladders
    assert called_bent <= 0.06 * ladders


@pytest.mark.parametrize(
    "truth",
    [
        lambda size: size**-0.3 if size < 64 else 64**-0.3 * (size / 64) ** 0.2,
        lambda size: size**0.3 if size < 32 else 32**0.3 * (size / 32) ** -0.1,
    ],
    ids=["down, then up", "up, then down"],
)
def test_a_law_that_bends_is_grey_in_most_ladders(truth: Truth) -> None:
    rng, sizes = np.random.default_rng(62), [16.0, 32.0, 64.0, 128.0]
    bent = sum(fit_law(sizes, simulated(truth, sizes, 4, rng)).bends for _ in range(100))
    assert bent >= 85


def test_values_without_noise_give_the_law_back() -> None:
    law = fit_law([1, 2, 4, 8, 16], [[2 + 3 * size**-0.5] * 2 for size in (1, 2, 4, 8, 16)])
    assert (law.offset, law.scale * law.middle**0.5, law.power) == pytest.approx((2, 3, -0.5), rel=1e-3)
    assert law.at(64) == pytest.approx(2 + 3 / 8, rel=1e-4)
    assert law.r2 == pytest.approx(1)


def test_an_interval_is_longer_further_ahead() -> None:
    rng = np.random.default_rng(63)
    law = fit_law([16, 32, 64], simulated(lambda size: size**-0.5, [16, 32, 64], 4, rng))
    reach = [math.log(ahead.high / ahead.low) for ahead in map(law.forecast, (64, 128, 640))]
    assert reach == sorted(reach)


def test_a_mean_is_that_of_the_logarithms_with_students_interval() -> None:
    mean = mean_of([math.exp(1.0), math.exp(2.0), math.exp(3.0)])
    assert mean.median == pytest.approx(math.exp(2))
    assert math.log(mean.high) - 2 == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    assert mean_of([2.0]).high == math.inf


def test_two_sizes_or_one_seed_are_refused() -> None:
    with pytest.raises(ValueError, match="a law needs 3 sizes and 2 seeds, got 2 and 2"):
        fit_law([1, 2], [[1.0, 1.0], [2.0, 2.0]])
    with pytest.raises(ValueError, match="got 3 and 1"):
        fit_law([1, 2, 4], [[1.0], [2.0], [3.0]])
