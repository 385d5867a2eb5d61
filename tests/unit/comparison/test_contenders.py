"""Contests: what is scored, in which order, and what the paired interval of a ratio is worth."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dsgd.comparison.contenders import Contender, bonferroni_confidence, confidence_of, pairs_of, rank_contenders
from dsgd.report.interval import Estimate, paired_ratio
from dsgd.report.table_layout import shown
from tests.support.contenders import contender
from tests.support.each_row import each_row

INF = math.inf


def paired(count: int, ratio: float, noise: float, seed: int, trials: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Times of two contenders, [trials, count]: what a seed does to both, and to each alone; log-normal, in s."""
    draws = np.random.default_rng(seed).standard_normal((3, trials, count))
    common, alone, other = np.exp(draws[0]), np.exp(noise * draws[1]), np.exp(noise * draws[2])
    return ratio * common * alone, common * other


def test_the_confidence_of_all_differences_together_is_stated_for_the_pairs_there_are():
    """Bonferroni over k(k-1)/2 pairs, each wrong with 2^(1-n) at the most extreme ranks of n seeds."""
    assert [bonferroni_confidence(many) for many in (1, 2, 3, 12)] == pytest.approx(
        [0.95, 0.95, 1 - 0.05 / 3, 1 - 0.05 / 66]
    )
    assert confidence_of(5, 2) == 1 - 2 / 2**5
    assert confidence_of(7, 3) == pytest.approx(1 - 3 / 2**6)
    found = rank_contenders([contender(f"gossip tau={i}", [20.0 + i] * 5) for i in range(12)])
    assert (pairs_of(len(found.standings)), found.seeds_needed) == (66, 12)
    assert found.confidence < 0


def test_what_is_censored_is_known_to_exceed_the_end_of_its_run():
    """Missed in 40 s against 10 s: more than 4 times. Three of five: the median is, too. Diverged: nothing is known."""
    ratio = paired_ratio([INF] * 3 + [20, 30], [10] * 5, ends=[40, 44, 48, INF, INF], reference_ends=[INF] * 5)
    assert shown(ratio) == "> 4.000 [2.000, > 4.800]"
    ratio = paired_ratio([20, 30, INF], [10, INF, INF], ends=[INF, INF, 40], reference_ends=[INF, 60, 40])
    assert shown(replace(ratio, median=1.0)) == "1.000 [< 0.5000, > 2.000]"
    both = paired_ratio([20, INF], [10, INF], ends=[INF, 40], reference_ends=[INF, 40])
    assert shown(replace(both, median=1.0)) == "1.000 [< 2.000, > 2.000]"
    neither = paired_ratio([INF, INF], [INF, INF], ends=[40, 40], reference_ends=[40, 40])
    assert shown(replace(neither, median=1.0)) == "1.000 [?, ?]"
    assert (
        shown(paired_ratio([30, 30], [INF, INF], ends=[INF] * 2, reference_ends=[60, 50]))
        == "< 0.5500 [< 0.5000, < 0.6000]"
    )
    assert shown(paired_ratio([INF] * 2, [10] * 2, ends=[INF] * 2, reference_ends=[INF] * 2)) == "never"


def test_a_missed_seed_whose_bound_lies_among_the_others_widens_the_interval_and_hides_the_median():
    """Missed in 40 s against 39 s: more than 1.03 times, which may be less or more than the 1.2 and 1.5 beside it."""
    ratio = paired_ratio([12, 15, INF], [10, 10, 39], ends=[12, 15, 40], reference_ends=[10, 10, 39])
    assert shown(ratio) == "> 1.200 [1.026, > 1.500]"
    ratio = paired_ratio([10, 10, 39], [12, 15, INF], ends=[10, 10, 39], reference_ends=[12, 15, 40])
    assert shown(ratio) == "< 0.8333 [< 0.6667, 0.9750]"


def test_of_cut_off_runs_the_ends_make_no_bound_wrong():
    """A third of the times are beyond the budget: what is shown of the ratio is true of what it would have been."""
    times, reference = paired(6, ratio=1.7, noise=0.2, seed=1)
    budget_s = float(np.quantile(np.concatenate([times, reference]), 0.67))
    ends = [budget_s] * 6
    for one, other in zip(times, reference, strict=True):
        true = paired_ratio(list(one), list(other))
        cut, reference_cut = ([INF if value > budget_s else value for value in values] for values in (one, other))
        found = paired_ratio(cut, reference_cut, ends=ends, reference_ends=ends)
        assert found.low <= true.low
        assert true.high <= found.high
        if found.median == INF:
            assert found.above is not None
            assert found.above.median <= true.median
        elif found.median == 0:
            assert found.below is not None
            assert true.median <= found.below.median
        elif not math.isnan(found.median):
            assert found.median == true.median


def test_the_ratio_is_taken_seed_by_seed():
    """What is slow on one seed for both does not widen the interval."""
    assert paired_ratio([2.0, 20.0, 200.0], [1.0, 10.0, 100.0]) == Estimate(2.0, 2.0, 2.0, 3)


@each_row(
    ("scores", "reference", "wanted"),
    [
        ([INF, 3.0, 3.0], [1.0, 1.0, 2.0], Estimate(3.0, 1.5, INF, 3)),  # later than any time
        ([1.0, 3.0, 3.0], [INF, 1.0, 2.0], Estimate(1.5, 0.0, 3.0, 3)),
        ([INF, 3.0, 4.0], [INF, 1.0, 1.0], Estimate(math.nan, 0.0, INF, 3)),  # 3 or 4: nobody knows
        ([INF, 3.0, 3.0], [INF, 1.0, 1.0], Estimate(3.0, 0.0, INF, 3)),
        ([INF, INF], [INF, INF], Estimate(math.nan, 0.0, INF, 2)),
        ([0.0, 0.0, 2.0], [0.0, 1.0, 0.0], Estimate(1.0, 0.0, INF, 3)),
        ([1.0], [1.0], Estimate(1.0, 1.0, 1.0, 1)),
    ],
)
def test_a_seed_that_neither_got_there_on_decides_nothing(
    scores: list[float], reference: list[float], wanted: Estimate
):
    found = paired_ratio(scores, reference)
    assert (found.low, found.high, found.count) == (wanted.low, wanted.high, wanted.count)
    assert found.median == wanted.median or (math.isnan(found.median) and math.isnan(wanted.median))


def test_contenders_are_sorted_by_their_ratio_to_the_first():
    found = rank_contenders(
        [contender("sync", [30, 40, 20]), contender("easgd", [INF] * 3), contender("gossip", [10, 80, 10])]
    )
    assert [one.name for one in found.standings] == ["gossip", "sync", "easgd"]
    first, second, last = found.standings
    assert first.score == Estimate(10, 10, 80, 3)
    assert first.ratio == Estimate(1, 1, 1, 3)
    assert second.ratio == Estimate(2, 0.5, 3, 3)
    assert (last.ratio.median, last.ratio.low, last.ratio.high) == (INF, INF, INF)
    assert last.ratio.above == Estimate(10, 1.25, 10, 3), "it ran for 100 s"
    assert [one.behind for one in found.standings] == [False, False, True]
    assert [one.missed for one in found.standings] == [0, 0, 3]


def test_who_is_sooner_on_most_seeds_is_the_first_although_its_median_is_later():
    """The order is that of the ratios, and no ratio of the table says the contrary."""
    slow = [float(second) for second in range(1, 10)]
    fast = [second - 0.1 if second != 4 else 100.0 for second in slow]
    found = rank_contenders([contender("sync", slow), contender("gossip", fast)])
    assert [one.name for one in found.standings] == ["gossip", "sync"]
    assert found.standings[0].score.median > found.standings[1].score.median
    assert found.standings[1].ratio.median > 1


def test_without_a_target_the_final_loss_counts_and_who_diverged_loses():
    found = rank_contenders([contender("sync", [0.3, 0.2], target=None), contender("gossip", [INF, 0.1], target=None)])
    assert found.aim is None
    assert sorted(one.scores for one in found.standings) == [[0.3, 0.2], [INF, 0.1]]
    collapsed = contender("easgd", [0.1, 0.1], target=None, collapsed=True)
    assert rank_contenders([collapsed]).standings[0].missed == 2


def test_a_run_that_collapsed_or_diverged_after_its_target_has_not_reached_it():
    endings: tuple[dict[str, Any], ...] = ({"collapsed": True}, {"status": "diverged"})
    for end in endings:
        assert rank_contenders([contender("sync", [20, 20], **end)]).standings[0].missed == 2


def _on_seeds(one: Contender, seeds: list[int]) -> Contender:
    runs = [replace(run, config=run.config | {"seed": seed}) for run, seed in zip(one.runs, seeds, strict=True)]
    return replace(one, runs=runs)


def test_what_cannot_be_compared_is_refused_in_one_line():
    sync, gossip = contender("sync", [1, 2]), contender("gossip", [1, 2])
    wall = contender("gossip", [1, 2], clock="wall")
    for contenders, message in (
        ([], r"^contenders must be at least one, got none$"),
        ([sync, sync], r"^contenders must have names that differ, got several times: sync$"),
        ([sync, contender("gossip", [1])], r"^contender gossip must have the seeds \[0, 1\] of sync, got \[0\]$"),
        ([sync, _on_seeds(gossip, [1, 0])], r"^contender gossip must have the seeds \[0, 1\] of sync, got \[1, 0\]$"),
        ([replace(sync, runs=[])], r"^contender sync must have a run for each seed, got none$"),
        (
            [sync, contender("gossip", [1, 2], target=0.8)],
            r"^contender gossip must have the target of sync, got a test",
        ),
        ([sync, wall], r"^contenders must have times of one clock, got virtual and wall$"),
    ):
        with pytest.raises(ValueError, match=message):
            rank_contenders(contenders)
