"""Comparisons by the protocol: how far intervals reach beyond what the seeds say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dsgd.record.reader import Run
from dsgd.report.contest import Contender
from studies.reproduction.fair import Null, accuracy_gain, drop_difference, loss_growth, loss_ratio, time_ratio
from studies.reproduction.protocol import confidence_of_each, fold_error, gain_error, sampling_error
from tests.support.contenders import contender
from tests.support.each_row import each_row

SEEDS = 10
TEST = 10_000  # samples


def by_time(name: str, seconds: Sequence[float]) -> Contender:
    """Return a contender that reaches its target after these seconds."""
    return contender(name, seconds)


def at_end(name: str, loss: float, accuracy: float = 0.9, deviation: float = 0.5) -> Contender:
    """Return a contender whose seeds all end alike."""
    made = contender(name, [loss] * SEEDS, target=None, test_accuracy=accuracy)

    def ended(run: Run) -> Run:
        last = run.metrics[-1] | {"test_loss_deviation": deviation}
        data = {"name": "shapes", "test_size": TEST}
        return replace(run, config=run.config | {"data": data}, metrics=[*run.metrics[:-1], last])

    return replace(made, runs=[ended(run) for run in made.runs])


@each_row("other", [12.0, 8.0])
def test_an_interval_is_longer_by_the_spread_of_the_null_test_at_both_ends(other: float) -> None:
    slow, fast = by_time("sync", [20.0] * SEEDS), by_time("gossip", [10.0] * SEEDS)
    null = Null(by_time("sync", [10.0] * SEEDS), by_time("sync", [other] * SEEDS))
    spread = max(other / 10, 10 / other)
    value = time_ratio(slow, fast, 1, null)
    assert (value.low, value.high) == pytest.approx((2 / spread, 2 * spread), rel=1e-3)


def test_a_null_test_that_missed_its_target_decides_nothing() -> None:
    slow, fast = by_time("sync", [20.0] * SEEDS), by_time("gossip", [10.0] * SEEDS)
    value = time_ratio(slow, fast, 1, Null(slow, by_time("sync", [math.inf] * SEEDS)))
    assert (value.low, value.high) == (0, math.inf)


def falling(name: str, seconds: float, slope: float, error: float) -> Contender:
    """Return a contender whose loss comes to 0.3 after so many seconds, and falls as time ** (-1 / slope). error: by
    how much the parts of the test set differ, as a share of the loss, with a sign that alternates."""
    made = contender(name, [seconds] * SEEDS, target=None)

    def reaching(run: Run) -> Run:
        times = [seconds * share for share in np.geomspace(0.5, 1.2, 200)]
        marks = [{"time_s": t, "test_loss": 0.3 * (t / seconds) ** (-1 / slope)} for t in times]
        losses = [0.3 * (1 + (-1) ** part * error) for part in range(100)]
        summary = {**(run.summary or {}), "target_accuracy": None, "target_loss": 0.3, "test_fold_losses": losses}
        target = {"loss": 0.3, "crossing": "smoothed"}
        more = {"target": target, "data": {"name": "shapes", "test_size": TEST}}
        return replace(run, metrics=marks, summary=summary, config=run.config | more)

    return replace(made, runs=[reaching(run) for run in made.runs])


def test_the_error_of_the_test_set_in_a_time_is_that_of_the_loss_by_the_slope_of_the_curve() -> None:
    steep, flat = falling("sync", 20.0, 1.0, 0.0), falling("gossip", 10.0, 3.0, 0.05)
    error = fold_error(np.tile([0.05, -0.05], (SEEDS, 50)), confidence_of_each(1, 2))
    value = time_ratio(steep, flat, 1, Null(steep, steep))
    assert value.median == pytest.approx(2, rel=1e-3)
    assert value.high / value.median == pytest.approx(math.exp(3 * error), rel=1e-3)
    assert value.median / value.low == pytest.approx(math.exp(3 * error), rel=1e-3)


def test_conditions_without_parts_have_the_error_of_those_with_them() -> None:
    steep, flat = falling("sync", 20.0, 1.0, 0.0), falling("gossip", 10.0, 3.0, 0.05)
    without = [replace(run, summary={**(run.summary or {}), "test_fold_losses": None}) for run in flat.runs]
    elsewhere = replace(flat, runs=without)
    null = Null(steep, steep)
    assert time_ratio(steep, elsewhere, 1, null, (steep, flat)) == time_ratio(steep, flat, 1, null)
    with pytest.raises(ValueError, match=r"the error of a ratio must be a factor, got nan"):
        time_ratio(steep, elsewhere, 1, null)


def test_the_test_set_is_part_of_the_interval_of_a_loss_and_of_an_accuracy() -> None:
    one, reference = at_end("gossip", 0.3, accuracy=0.89), at_end("sync", 0.3, accuracy=0.91)
    null, confidence = Null(reference, reference), confidence_of_each(2, 2)
    ratio = loss_ratio(one, reference, 2, null)
    assert math.log(ratio.high) == pytest.approx(sampling_error(math.hypot(0.5 / 0.3, 0.5 / 0.3), TEST, confidence))
    assert ratio.low == pytest.approx(1 / ratio.high)
    gain = accuracy_gain(one, reference, 2, null)
    error = gain_error(0.89, 0.91, TEST, confidence)
    assert (gain.low, gain.high) == pytest.approx((-0.02 - error, -0.02 + error))


def test_a_ratio_of_ratios_has_the_errors_of_both_and_the_spread_of_the_null_test_twice() -> None:
    large, small, fewer, other = (at_end("sync", loss) for loss in (0.6, 0.3, 0.4, 0.25))
    null, confidence = Null(small, at_end("sync", 0.33)), confidence_of_each(2, 3)
    value = loss_growth((large, small), (fewer, other), 2, null)
    assert value.median == pytest.approx((0.6 / 0.3) / (0.4 / 0.25))
    errors = [sampling_error(math.hypot(0.5 / a, 0.5 / b), TEST, confidence) for a, b in ((0.6, 0.3), (0.4, 0.25))]
    assert math.log(value.high / value.median) == pytest.approx(sum(errors) + 2 * math.log(1.1))
    assert value.low * value.high == pytest.approx(value.median**2)
    ended = [replace(run, summary=(run.summary or {}) | {"status": "diverged"}) for run in large.runs]
    assert loss_growth((replace(large, runs=ended), small), (fewer, other), 2, null).median == math.inf


def test_a_difference_of_drops_has_the_errors_of_both_and_the_wider_null_test() -> None:
    even, skewed, relay, uneven = (at_end("dpsgd", 0.3, accuracy) for accuracy in (0.9, 0.7, 0.88, 0.84))
    narrow, wide = (Null(even, at_end("dpsgd", 0.3, accuracy)) for accuracy in (0.89, 0.87))
    value = drop_difference((relay, uneven), (even, skewed), 0.5, 2, [narrow, wide])
    assert value.median == pytest.approx(0.04 - 0.5 * 0.2)
    confidence = confidence_of_each(2, 3)
    error = gain_error(0.88, 0.84, TEST, confidence) + 0.5 * gain_error(0.9, 0.7, TEST, confidence)
    assert value.high - value.median == pytest.approx(error + 1.5 * 0.03)
    assert value.high + value.low == pytest.approx(2 * value.median)


def test_a_seed_that_diverged_is_worse_than_any_other() -> None:
    one, reference = at_end("gossip", 0.2), at_end("sync", 0.3)
    diverged = [replace(run, summary=(run.summary or {}) | {"status": "diverged"}) for run in one.runs[:6]]
    worse = replace(one, runs=[*diverged, *one.runs[6:]])
    null = Null(reference, reference)
    assert loss_ratio(one, reference, 1, null).median == pytest.approx(0.2 / 0.3)
    assert loss_ratio(worse, reference, 1, null).median == math.inf
    assert accuracy_gain(worse, reference, 1, null).median == pytest.approx(-0.9)


def by_parts(side: Contender, losses: np.ndarray, accuracies: np.ndarray) -> Contender:
    """Return a contender whose runs have these numbers for the parts of the test set, each [seeds, parts]."""
    fields = [
        {"test_fold_losses": loss.tolist(), "test_fold_accuracies": accuracy.tolist()}
        for loss, accuracy in zip(losses, accuracies, strict=True)
    ]
    runs = [replace(run, summary=(run.summary or {}) | own) for run, own in zip(side.runs, fields, strict=True)]
    return replace(side, runs=runs)


def test_parts_of_the_test_set_tell_what_two_models_have_in_common() -> None:
    """Hard parts are hard for both. What is left is their difference, whose error is in closed form; without parts, or
    where one run lacks them, both count as independent."""
    generator = np.random.default_rng(0)
    hard, other = 0.1 * generator.standard_normal((2, 1, 100))
    noise = 0.01 * generator.standard_normal((2, SEEDS, 100))
    one, reference = at_end("gossip", 0.33), at_end("sync", 0.3)
    null, confidence = Null(reference, reference), confidence_of_each(2, 2)
    losses = 0.33 * (1 + hard + noise[0]), 0.3 * (1 + hard + noise[1])
    accuracies = np.tile(0.9 - hard, (SEEDS, 1)), 0.91 - hard + noise[1]
    first, second = (by_parts(*of_side) for of_side in zip((one, reference), losses, accuracies, strict=True))

    ratio, alone = (loss_ratio(*pair, 2, null) for pair in ((first, second), (one, reference)))
    relative = [values / values.mean(axis=1, keepdims=True) for values in losses]
    assert math.log(ratio.high / 1.1) == pytest.approx(fold_error(relative[0] - relative[1], confidence))
    assert ratio.low * ratio.high == pytest.approx(1.1**2)
    assert math.log(ratio.high / 1.1) < math.log(alone.high / 1.1) / 10
    gain = accuracy_gain(first, second, 2, null)
    assert gain.high - gain.low == pytest.approx(2 * fold_error(noise[1], confidence))

    apart = by_parts(reference, 0.3 * (1 + other + noise[1]), accuracies[1])  # hard for one of them only
    assert math.log(loss_ratio(first, apart, 2, null).high / 1.1) > 5 * math.log(ratio.high / 1.1)
    older = replace(second, runs=[*second.runs[1:], reference.runs[0]])
    assert loss_ratio(first, older, 2, null) == alone
    assert accuracy_gain(first, older, 2, null) == accuracy_gain(one, reference, 2, null)
