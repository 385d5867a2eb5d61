"""Replicated pipelines on losses whose T* is known."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import partial
from statistics import fmean

import pytest

from dsgd.report.interval import Estimate, t_quantile
from studies.evidence.contrast import Contrast
from studies.evidence.paired_t import confidence_of, difference, ratio, replicates_wanted
from studies.evidence.pipeline import (
    Candidate,
    Measurement,
    Missing,
    Pipelines,
    crossing,
    losses_around,
    steps_by_part,
    steps_to,
    tuned_level,
)
from studies.evidence.trial import MEASURE, TUNE, Trial, TrialOutcome
from tests.support.power_laws import TARGET, PowerLaw, Training

NOTHING = Pipelines({}, {})


def cell(contender: str, first: int = 640) -> Candidate:
    return Candidate("shapes", contender, 8, first)


@pytest.mark.parametrize("first", [20, 640, 20_480])
def test_steps_to_a_target_are_those_of_the_power_law(first: int) -> None:
    """From below and from above; the level of the best rate lies between two that are tried."""
    training = Training({"sync": PowerLaw(3000, 0.3, level=0.3, sharpness=0.001)})
    assert steps_to(cell("sync", first), 0, TARGET, training) == pytest.approx(3000, rel=0.003)


def test_a_target_that_is_never_reached_takes_for_ever() -> None:
    assert math.isinf(steps_to(cell("sync"), 0, TARGET, Training({"sync": PowerLaw(1e9, 0.3, 0)})))


def test_the_rate_is_the_best_one_near_and_diverging_ones_are_left_behind() -> None:
    law = PowerLaw(3000, 0.3, level=5.2, sharpness=0.01)
    training = Training({"sync": law})
    assert tuned_level(cell("sync"), 0, 1000, 0, (2, 1), training) == 5
    for level in range(3, 30):
        training[Trial("shapes", "sync", 8, TUNE, 0, 1000, level)] = TrialOutcome(math.inf, 0.0, (), "")
    assert tuned_level(cell("sync"), 0, 1000, 0, (2, 1), training) == 2
    assert tuned_level(cell("sync"), 0, 1000, 9, (2, 1), training) == 2


def test_what_is_missing_is_what_is_run_next() -> None:
    """A pipeline over an archive asks for the trials that it would read, and for none that it would not."""
    training, archive, asked = Training({"sync": PowerLaw(1500, 0.3, 0)}), dict[Trial, TrialOutcome](), list[Trial]()
    while True:
        try:
            steps = steps_to(cell("sync"), 0, TARGET, archive)
            break
        except Missing as line:
            trials = [wanted for wanted in line.wanted if isinstance(wanted, Trial)]
            assert trials
            assert not archive.keys() & {*trials}
            asked += trials
            archive |= {trial: training[trial] for trial in trials}
    assert steps == steps_to(cell("sync"), 0, TARGET, training)
    assert {trial.steps for trial in asked} == {640, 1280, 2560}
    assert [trial.steps for trial in asked if trial.stage == MEASURE] == [640, 1280, 2560]
    assert {trial.seed for trial in asked if trial.stage == TUNE} == {1000}


def test_a_crossing_is_the_first_and_must_begin_above() -> None:
    curve = {100: 0.8, 200: 0.4, 400: 0.2, 800: 0.5, 1600: 0.1}
    assert crossing(curve, 0.4) == 200
    assert crossing(curve, 0.8 / 2**0.5) == pytest.approx(100 * 2**0.5)
    assert math.isinf(crossing(curve, 0.05))
    with pytest.raises(ValueError, match=r"a curve must begin above 0\.9, got 0\.8 after 100 steps"):
        crossing(curve, 0.9)
    assert crossing({100: math.inf, 200: 0.1}, 0.4) == 200


def test_a_budget_that_misses_the_target_on_a_seed_is_not_preferred() -> None:
    """2,560 steps meet the target on two tuning seeds of three. By their median time such a budget was chosen once, and
    missed the target on most of the measured seeds. T* lies above it."""
    training = Training({"easgd": PowerLaw(2700, 0.3, 0)}, noise=0.02)
    for seed, loss in enumerate((0.299, 0.303, 0.298)):
        training[Trial("shapes", "easgd", 8, TUNE, seed, 2560, -1)] = TrialOutcome(loss, 0.0, (), "")
    measured = [steps_to(cell("easgd"), replicate, TARGET, training) for replicate in range(8)]
    assert ratio(measured, [2700.0] * 8).low < 1 < ratio(measured, [2700.0] * 8).high
    assert ratio(measured, [2560.0] * 8).median > 1.02


def test_intervals_hold_the_truth_in_95_of_100_studies() -> None:
    """A thousand studies of two contenders each, with tuning, noise, luck that both share, and the stopping rule. Those
    that end early have longer intervals than they need: so a little more than 95 %."""
    held = 0
    for number in range(1000):
        draw = random.Random(number)
        laws = {name: PowerLaw(draw.uniform(900, 7000), draw.uniform(0.25, 0.38), draw.uniform(-2, 3)) for name in "ab"}
        truth = laws["a"].steps / laws["b"].steps
        training = Training(laws, seed=number, noise=0.02, common=0.02)
        interval = interval_of(training, threshold=truth * draw.uniform(0.7, 1.4))
        held += interval.low <= truth <= interval.high
    assert 930 <= held <= 970


def interval_of(training: Training, threshold: float) -> Estimate:
    values, others, wanted = list[float](), list[float](), 3
    while len(values) < wanted:
        for replicate in range(len(values), wanted):
            values.append(steps_to(cell("a"), replicate, TARGET, training))
            others.append(steps_to(cell("b"), replicate, TARGET, training))
        wanted = replicates_wanted(len(values), partial(ratio, values, others), threshold)
    assert len(values) in (3, 5, 8)
    return ratio(values, others)


def test_losses_around_a_target_double_their_steps() -> None:
    curve = losses_around(cell("sync"), 0, TARGET, Training({"sync": PowerLaw(1500, 0.3, 0)}))
    assert [*curve] == [640, 1280, 2560]
    assert sorted(curve.values(), reverse=True) == [*curve.values()]


@pytest.mark.parametrize(
    ("degrees", "table"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (7, 2.365), (9, 2.262), (30, 2.042)]
)
def test_quantiles_of_t_are_those_of_the_tables(degrees: int, table: float) -> None:
    assert t_quantile(0.975, degrees) == pytest.approx(table, abs=5e-4)
    with pytest.raises(ValueError, match="probability must be in"):
        t_quantile(1.0, degrees)


def test_a_ratio_with_an_infinite_number_decides_nothing() -> None:
    unknown = ratio([1.0, math.inf, 2.0], [1.0, 1.0, 1.0])
    assert math.isnan(unknown.median)
    assert (unknown.low, unknown.high) == (0.0, math.inf)
    assert replicates_wanted(3, partial(ratio, [1.0, math.inf, 2.0], [1.0, 1.0, 1.0]), 1.0) == 3
    assert difference([0.9, math.inf], [0.9, 0.9]).high == math.inf


def test_a_ratio_over_a_rate_with_which_nothing_learns() -> None:
    assert ratio([0.2, 0.1, 0.4], [0.0, 0.0, 0.0]).low == math.inf
    assert (ratio([0.2, 0.1, 0.4], [0.0, 0.1, 0.0]).low, ratio([0.0, 0.1], [0.0, 0.1]).high) == (0.0, math.inf)


def test_what_no_replicate_reaches_is_infinite() -> None:
    assert ratio([math.inf] * 3, [1.0, 2.0, 3.0]).low == math.inf
    assert ratio([1.0, 2.0, 3.0], [math.inf] * 3).high == 0
    assert difference([-math.inf] * 3, [0.9] * 3).high == -math.inf


def test_more_checks_of_which_any_may_err_need_longer_intervals_and_more_replicates() -> None:
    """A ratio of 1.6 whose interval is just above 1 at 99 %."""
    values, others = [1.6 * 0.92, 1.6, 1.6 * 1.08], [1.0] * 3
    assert replicates_wanted(3, partial(ratio, values, others), 1.0, confidence_of(3, 1)) == 3
    assert replicates_wanted(3, partial(ratio, values, others), 1.0, confidence_of(3, 12)) == 5
    assert [confidence_of(3), confidence_of(8), confidence_of(8, 10)] == [0.99, 0.95, 0.995]


def test_the_error_of_test_samples_reaches_steps_by_the_slope_of_the_curve() -> None:
    """On a tenth of the samples the loss is 3 % higher throughout: with a slope of 0.3 it takes 10 % more steps."""
    training = Training({"sync": PowerLaw(1500, 0.3, 0)})
    base = steps_to(cell("sync"), 0, TARGET, training)
    for trial, outcome in list(training.items()):
        factors = [1.03] + [1.0] * 9
        training[trial] = replace(outcome, parts=tuple(factor * outcome.loss for factor in factors))
    parts = steps_by_part(cell("sync"), 0, TARGET, training)
    assert parts[0] == pytest.approx(base * 1.03 ** (1 / 0.3), rel=0.01)
    assert parts[1:] == pytest.approx([base] * 9)


def test_an_interval_of_losses_holds_for_other_test_samples() -> None:
    """Two contenders whose losses on the tenths of the test samples differ by the luck of these samples alone."""

    def measured(luck: list[float]) -> Contrast:
        def first(_: Pipelines, replicate: int) -> Measurement:
            parts = tuple(math.exp(0.002 * replicate) * each for each in luck)
            return Measurement(fmean(parts), parts)

        return Contrast("loss", "", first, lambda *_: Measurement(1.0, (1.0,) * 10))

    draw = random.Random(0)
    estimates = [measured([math.exp(draw.gauss(0, 0.05)) for _ in range(10)]).value(NOTHING) for _ in range(400)]
    assert 370 <= sum(each.low <= 1.0 <= each.high for each in estimates) <= 400
