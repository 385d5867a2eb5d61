"""Compare tuned contenders by runs that are paired by their seed: a score for each, and its ratio to the first's.

The score is the time to the target; without a target the loss at the end. Less is better. A seed that missed the
target, diverged or collapsed counts as infinite: later than all others.

The order follows the same ratios as the verdict: the first contender is sooner than each other on most seeds, and the
others are sorted by their ratio to it. Intervals of ratios are corrected for all pairs of contenders (Bonferroni),
because the first is chosen by the same seeds. So all named differences hold together with the stated confidence.

With prices the score is the cost to the target: the nodes' time, and the bytes that they sent by then."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from dsgd.crossing import Aim
from dsgd.record.reader import Run, number
from dsgd.record.safe_text import counted, for_terminal
from dsgd.report.fields import aim_of, end_s, rule_of, time_to_target_s
from dsgd.report.interval import CONFIDENCE, NOTHING, Estimate, coverage, estimate, left_out, paired_ratio
from dsgd.report.labels import Series

GB = 1e9
LEAST_CONFIDENCE = 0.9  # of all differences together: with less, the seeds decide little


@dataclass(frozen=True, kw_only=True)
class Contender(Series):
    """An algorithm with its options on a number of nodes, tuned, and measured on several seeds.

    label: name in tables and figures, `gossip, 16 nodes`. runs: one for each seed, in the order of the seeds, which are
    the same for all contenders. chosen: {tuned key: value}. works: lowest and highest working value of the first tuned
    key. spent: number of tuning runs."""

    chosen: Mapping[str, Any]
    works: tuple[float, float] | None
    spent: int


@dataclass(frozen=True)
class Prices:
    """The prices of a cluster, in any currency. node_hour: price of a node for an hour. egress_gb: price of a sent GB
    (1e9 bytes)."""

    node_hour: float = 0.0
    egress_gb: float = 0.0

    @property
    def text(self) -> str:
        """Return `nodes × hours × 2 + GB sent × 0.09`."""
        parts = [f"nodes × hours × {self.node_hour:g}"] * bool(self.node_hour)
        parts += [f"GB sent × {self.egress_gb:g}"] * bool(self.egress_gb)
        return " + ".join(parts)

    def cost(self, run: Run, seconds: float) -> float:
        """Return the cost of a run until a time of its clock; infinite for infinite time, NaN for unknown bytes."""
        if math.isinf(seconds):
            return math.inf
        return self.charge(
            number(run.nodes), seconds, counted_by(run, "bytes_sent", seconds) if self.egress_gb else 0.0
        )

    def charge(self, nodes: float, seconds: float, sent_bytes: float) -> float:
        """Return the price of nodes for a time, and of the bytes that they send."""
        return nodes * seconds / 3600 * self.node_hour + sent_bytes / GB * self.egress_gb


def counted_by(run: Run, field: str, seconds: float) -> float:
    """Return a count of all nodes of a run by a time, `bytes_sent` or `samples`, on straight lines between its marks;
    NaN if no mark says."""
    marks = [(number(mark.get("time_s")), number(mark.get(field))) for mark in run.metrics]
    known = [mark for mark in marks if not math.isnan(sum(mark))]
    if not known:
        return math.nan
    times, counts = zip(*known, strict=True)
    return float(np.interp(seconds, times, counts))


@dataclass(frozen=True)
class Standing:
    """Hold the result of a contender. scores: [seeds], infinite if the target was missed.

    score: their median and interval. ratio: ratio of its scores to the first contender's, seed by seed, with its
    interval corrected for the number of contenders."""

    contender: Contender
    scores: list[float]
    score: Estimate
    ratio: Estimate

    @property
    def name(self) -> str:
        """Return the contender's name."""
        return self.contender.label

    @property
    def runs(self) -> Sequence[Run]:
        """Return the contender's runs."""
        return self.contender.runs

    @property
    def missed(self) -> int:
        """Return the number of seeds that missed the target."""
        return sum(map(math.isinf, self.scores))

    @property
    def behind(self) -> bool:
        """Check that it is distinguishable from the first: that the interval of the ratio lies above 1."""
        return self.ratio.low > 1


@dataclass(frozen=True)
class Comparison:
    """A comparison. aim: the target of all runs; None: their losses at the end are compared. standings: sorted; the
    others are compared to the first.

    prices: prices of the compared costs to the target; None: compare times, or losses without a target."""

    aim: Aim | None
    standings: list[Standing]
    prices: Prices | None = None

    @property
    def unit(self) -> str:
        """Return the unit behind a score: ` s`, or "" for a cost or a loss."""
        return " s" if self.aim is not None and self.prices is None else ""

    def score(self, run: Run) -> float:
        """Return the score of a run; infinite if it missed the target."""
        seconds = score(run)
        return seconds if self.prices is None else self.prices.cost(run, seconds)

    def end(self, run: Run) -> float:
        """Return the lower bound of the score of a run that missed the target."""
        return end_s(run) if self.prices is None else self.prices.cost(run, end_s(run))

    def estimate(self, runs: Sequence[Run]) -> Estimate:
        """Return median and interval of the scores of some runs."""
        return estimate([self.score(run) for run in runs], censored=[self.end(run) for run in runs])

    @property
    def seeds(self) -> int:
        """Return the number of seeds."""
        return len(self.standings[0].scores)

    @property
    def confidence(self) -> float:
        """Return the confidence of all intervals of ratios together that the seeds allow; not above 0 for too few."""
        return confidence_of(self.seeds, len(self.standings))

    @property
    def seeds_needed(self) -> int:
        """Return the number of seeds from which on all differences together have CONFIDENCE."""
        return next(n for n in range(2, 10_000) if confidence_of(n, len(self.standings)) >= CONFIDENCE)

    @property
    def runs(self) -> list[Run]:
        """Return the runs of all, in the order of the standings."""
        return [run for standing in self.standings for run in standing.runs]


def rank_contenders(contenders: Sequence[Contender], prices: Prices | None = None) -> Comparison:
    """Score and sort the contenders by the median of their ratios to the first. Ties are sorted by median score, then
    by the number of missed seeds, then by the final accuracy.

    prices: prices of a cluster, which make the score the cost to the target, if there is a target.

    Raises ValueError, in one line, unless names differ, and all have the same seeds, target and clock."""
    _check(contenders)
    aim = aim_of(contenders[0].runs[0])
    scored = Comparison(aim, [], None if aim is None else prices)
    scores = {contender.label: [scored.score(run) for run in contender.runs] for contender in contenders}
    ends = {contender.label: [scored.end(run) for run in contender.runs] for contender in contenders}

    def ratio(contender: Contender, other: Contender) -> Estimate:
        both = scores[contender.label], scores[other.label]
        return paired_ratio(*both, bonferroni_confidence(len(contenders)), ends[contender.label], ends[other.label])

    def sooner(contender: Contender) -> int:
        """Return the number of others that are sooner than this one on most seeds."""
        return sum(ratio(other, contender).median < 1 for other in contenders)

    first = min(contenders, key=lambda contender: (sooner(contender), *_order(contender, scores[contender.label])))
    reached = math.isfinite(min(scores[first.label]))
    itself = Estimate(1.0, 1.0, 1.0, len(first.runs), ratios=(1.0,) * len(first.runs)) if reached else NOTHING
    standings = [
        Standing(
            contender,
            scores[contender.label],
            scored.estimate(contender.runs),
            itself if contender is first else ratio(contender, first),
        )
        for contender in contenders
    ]
    standings.sort(key=lambda standing: (standing.contender is not first, *_place(standing)))
    return replace(scored, standings=standings)


def pairs_of(contenders: int) -> int:
    """Return the number of pairs of contenders, each of them a chance of error; 1 for one contender."""
    return max(1, math.comb(contenders, 2))


def bonferroni_confidence(contenders: int) -> float:
    """Return the confidence of each interval for a total CONFIDENCE of all, by Bonferroni."""
    return 1 - (1 - CONFIDENCE) / pairs_of(contenders)


def confidence_of(seeds: int, contenders: int) -> float:
    """Return the least confidence of all intervals together, from the numbers of seeds and contenders."""
    each = coverage(seeds, left_out(seeds, bonferroni_confidence(contenders)))
    return 1 - pairs_of(contenders) * (1 - each)


def aim_text(aim: Aim | None) -> str:
    """Return `a test accuracy of 0.9`, `a test loss of 0.3`; without a target `the loss at the end`."""
    return "the loss at the end" if aim is None else f"a {aim.field.replace('_', ' ')} of {aim.level:g}"


def score(run: Run, rule: str | None = None) -> float:
    """Return the seconds to the target of a run, or without a target its loss if it completed; else infinity.

    rule: rule of the crossing; None: the run's own."""
    if run.target is not None:
        seconds = time_to_target_s(run, rule)
        return math.inf if seconds is None else seconds
    loss = final_loss(run)
    return math.inf if math.isnan(loss) or run.outcome != "completed" else loss


def final_loss(run: Run) -> float:
    """Return the test loss at the end; the training loss of a problem that has no test data; NaN without either."""
    test_loss = number(run.final("test_loss"))
    return number(run.final("train_loss")) if math.isnan(test_loss) else test_loss


def distinguishable(comparison: Comparison, standing: Standing, other: Standing) -> bool:
    """Check that the interval of the ratio of two contenders, corrected for their number, does not hold 1."""
    ratio = paired_ratio(standing.scores, other.scores, bonferroni_confidence(len(comparison.standings)))
    return ratio.low > 1 or ratio.high < 1


def _place(standing: Standing) -> tuple[float, float, int, float]:
    """Return a sorting key of contenders behind the first: unknown ratios are last."""
    ratio = math.inf if math.isnan(standing.ratio.median) else standing.ratio.median
    return ratio, *_order(standing.contender, standing.scores)


def _order(contender: Contender, scores: Sequence[float]) -> tuple[float, int, float]:
    """Return a sorting key: median score, number of missed seeds, then the highest final accuracy."""
    accuracies = [accuracy for run in contender.runs if not math.isnan(accuracy := number(run.final("test_accuracy")))]
    return median(scores), sum(map(math.isinf, scores)), -median(accuracies) if accuracies else 0.0


def _check(contenders: Sequence[Contender]) -> None:
    if not contenders:
        raise ValueError("contenders must be at least one, got none")
    first = contenders[0]
    if repeated := {
        contender.label for contender in contenders if [two.label for two in contenders].count(contender.label) > 1
    }:
        raise ValueError(f"contenders must have names that differ, got several times: {'; '.join(sorted(repeated))}")
    seeds = [run.setting("seed") for run in first.runs]
    aim = aim_of(first.runs[0]) if first.runs else None
    for contender in contenders:
        if not contender.runs:
            raise ValueError(f"contender {contender.label} must have a run for each seed, got none")
        if (got_seeds := [run.setting("seed") for run in contender.runs]) != seeds:
            raise ValueError(
                f"contender {contender.label} must have the seeds {seeds} of {first.label}, got {got_seeds}"
            )
        for run in contender.runs:
            if (other := aim_of(run)) != aim:
                got = f"{aim_text(other)}, crossing={rule_of(run)}"
                raise ValueError(f"contender {contender.label} must have the target of {first.label}, got {got}")
    if len(clocks := {run.clock for contender in contenders for run in contender.runs} - {None}) > 1:
        raise ValueError(f"contenders must have times of one clock, got {' and '.join(sorted(map(str, clocks)))}")


def contender_scalings(contenders: Sequence[Contender]) -> list[Series]:
    """Gather the contenders that differ in their number of nodes alone; groups with one number of nodes are omitted."""
    gathered: dict[str, dict[int, Contender]] = {}
    for contender in sorted(contenders, key=lambda contender: contender.nodes):
        name = for_terminal(contender.label.removesuffix(f", {counted(contender.nodes, 'node')}"))
        gathered.setdefault(name, {})[contender.nodes] = contender
    return [
        Series(name, [run for contender in by_nodes.values() for run in contender.runs])
        for name, by_nodes in gathered.items()
        if len(by_nodes) > 1
    ]
