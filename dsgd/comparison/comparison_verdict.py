"""State the verdict of a comparison in sentences: the first contender and its lead, contenders that are not
distinguishable, contenders that missed the target, and the value at which one overtakes another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsgd.comparison.contenders import (
    LEAST_CONFIDENCE,
    Comparison,
    Standing,
    aim_text,
    confidence_of,
    distinguishable,
)
from dsgd.record.reader import Run, number
from dsgd.report.fields import aim_of, end_s, time_ratio
from dsgd.report.interval import CONFIDENCE, Estimate, coverage, estimate, left_out
from dsgd.report.labels import status_note
from dsgd.report.units import in_units, quantity, unit_of


def comparison_verdict(comparison: Comparison) -> str:
    """Return one or two sentences: the first contender, and the others' results. Times are medians over seeds, ratios
    are paired and have their interval in brackets."""
    sentences = [_first(comparison) + _caution(comparison), _others(comparison)]
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


def times(ratio: Estimate) -> str:
    """Return `1.7 (1.5–2.0) times` for a ratio whose interval lies above 1; empty if it has no finite part."""
    if math.isinf(ratio.low):
        return ""
    if not math.isfinite(ratio.median):
        return f"at least {_decimals([ratio.low])[0]} times"
    low, middle, *high = _decimals([ratio.low, ratio.median, *[ratio.high] * math.isfinite(ratio.high)])
    interval = f" ({low} or more)" if not high else f" ({low}–{high[0]})" if low != high[0] else ""
    return f"{middle}{interval} times"


def enumeration(names: Sequence[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    shown = [in_sentence(name) for name in names]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def in_sentence(name: str) -> str:
    """Return `gossip (tau=10, 16 nodes)` for `gossip, tau=10, 16 nodes`, because its commas would look like a
    list's."""
    head, _, options = name.partition(", ")
    return f"{head} ({options})" if options else head


def _caution(comparison: Comparison) -> str:
    """Return the warning of too few seeds for the contenders; empty if they suffice, and for one contender."""
    count = len(comparison.standings)
    if comparison.seeds == 1 and count > 1:
        return "; one seed decides nothing"
    nobody = math.isinf(comparison.standings[0].score.median)
    if comparison.confidence >= LEAST_CONFIDENCE or count == 1 or nobody:
        return ""
    enough = comparison.seeds_needed
    if count == 2:
        confidence = f"confidence {comparison.confidence:.0%}, {confidence_of(enough, 2):.0%} with {enough}"
        return f"; {comparison.seeds} seeds decide little ({confidence})"
    needed = f"with {enough} all differences would hold together with {CONFIDENCE:.0%} confidence"
    return f"; {comparison.seeds} seeds decide little between {count} contenders ({needed})"


def _first(comparison: Comparison) -> str:
    first, *others = comparison.standings
    if math.isinf(first.score.median):
        return _nobody(comparison)
    timed, goal = comparison.aim is not None, aim_text(comparison.aim)
    after = "after" if comparison.prices is None else "for"
    name, value = in_sentence(first.name), f"{three_digits(first.score.median)}{comparison.unit}"
    if not others:
        reaches = f"reaches {goal} {after} {value}" if timed else f"ends with a loss of {value}"
        some = f" (on {_share(first)})" if first.missed else ""
        return f"{name} {reaches}{some}; there is nothing to compare it with"
    rivals = [standing for standing in others if standing.missed < comparison.seeds]
    if tied := [standing.name for standing in rivals if not standing.behind]:
        what = f"at {goal} {after} {value}" if timed else f"with a loss of {value} at the end"
        return f"{name} is ahead, {what}, but {enumeration(tied)} cannot be told apart from it"
    near = rivals[0] if rivals else others[0]
    factor, rival = times(near.ratio), in_sentence(near.name)
    if not rivals or (math.isinf(near.score.median) and not factor):
        mostly = " on most seeds" if rivals or first.missed else ""
        what = f"reaches {goal}{mostly}, {after}" if timed else f"ends with a loss{mostly}, of"
        return f"Only {name} {what} {value}"
    high = f"{factor} as high" if factor else "higher"
    if comparison.prices is not None:
        return f"{name} reaches {goal} at the least cost, {value}; that of {rival} is {high}"
    if timed:
        lead = f"; {rival} takes {factor} as long" if factor else f", before {rival}"
        return f"{name} reaches {goal} first, after {value}{lead}"
    return f"{name} ends with the lowest loss, {value}; that of {rival} is {high}"


def _nobody(comparison: Comparison) -> str:
    first, *others = comparison.standings
    name, reached = in_sentence(first.name), comparison.seeds - first.missed
    goal, timed = aim_text(comparison.aim), comparison.aim is not None
    does = f"reaches {goal}" if timed else "ends with a loss"
    if not others:
        misses = f"{does} on {_share(first)} only" if reached else _never(comparison, [first], goal)
        return f"{name} {misses}{status_note(first.runs)}"
    if reached:
        count = len(comparison.standings)
        return f"None of the {count} contenders {does} on most seeds; {name} does on {_share(first)}"
    accuracy = estimate([number(run.final("test_accuracy")) for run in first.runs]).median
    nearest = comparison.aim is not None and comparison.aim.field == "test_accuracy" and accuracy < comparison.aim.level
    all_names = [standing.name for standing in comparison.standings]
    none, near = f"Of {enumeration(all_names)} none", ""
    if nearest:
        none, near = f"None of the {len(all_names)} contenders", f"; {name} ends nearest to it, at {accuracy:.3g}"
        near += f", before {enumeration(all_names[1:])}"
    least_s = min(end_s(run) for run in comparison.runs)
    within = f" within {three_digits(least_s)} s" if timed and math.isfinite(least_s) else ""
    return f"{none} {does}{within}{near}"


def _others(comparison: Comparison) -> str:
    """Return the second sentence, on the other contenders: their distances, ties, and missed goals."""
    others = comparison.standings[1:]
    if not others:
        return ""
    rivals = [standing for standing in others if standing.missed < comparison.seeds]
    behind = [standing for standing in rivals if standing.behind]
    ties = _ties(comparison, [standing for standing in behind if not standing.missed])
    tied = {name for names in ties for name in names}
    after_tie = behind[:1] if len(behind) < len(rivals) and behind and math.isfinite(behind[0].score.median) else []
    alone = [standing for standing in behind[1:] if not standing.missed and standing.name not in tied]
    factors = [(in_sentence(standing.name), times(standing.ratio)) for standing in [*after_tie, *alone]]
    verb, measure = ("has", " its loss") if comparison.aim is None else ("takes", " as long")
    verb, measure = (verb, measure) if comparison.prices is None else ("costs", " as much")
    clauses = []
    if known := [(name, factor) for name, factor in factors if factor]:
        (name, factor), *more = known
        clauses.append(", ".join([f"{name} {verb} {factor}{measure}", *map(" ".join, more)]))
    clauses += [f"{name} is behind" for name, factor in factors if not factor]
    clauses += [f"{enumeration(names)} cannot be told apart" for names in ties]
    return "; ".join([*clauses, *_missed(comparison)])


def _ties(comparison: Comparison, behind: Sequence[Standing]) -> list[list[str]]:
    """Gather neighbours in the order into groups without a distinguishable pair; groups of one are omitted."""
    groups: list[list[Standing]] = []
    for standing in behind:
        if groups and not any(distinguishable(comparison, standing, other) for other in groups[-1]):
            groups[-1].append(standing)
        else:
            groups.append([standing])
    return [[standing.name for standing in group] for group in groups if len(group) > 1]


def _missed(comparison: Comparison) -> list[str]:
    """Return a clause for each way of missing the target: never, on some seeds, diverged, collapsed."""
    nobody = math.isinf(comparison.standings[0].score.median)
    all_named = comparison.standings[0].missed == comparison.seeds
    groups: dict[tuple[int, str], list[Standing]] = {}
    for index, standing in enumerate(comparison.standings):
        mentioned = nobody and (index == 0 or all_named)  # by the first sentence
        note = status_note(standing.runs)
        if standing.missed and (note or not mentioned):
            groups.setdefault((standing.missed, note), []).append(standing)
    return [
        f"{enumeration([standing.name for standing in group])} {_how(comparison, group)}{note}"
        for (_, note), group in groups.items()
    ]


def _how(comparison: Comparison, group: Sequence[Standing]) -> str:
    """Return the text after the names of contenders that missed the goal on the same number of seeds."""
    missed, several, timed = group[0].missed, len(group) > 1, comparison.aim is not None
    if missed == comparison.seeds:
        return _never(comparison, group, "it")
    does = f"reach{'' if several else 'es'} it" if timed else f"end{'' if several else 's'} with a loss to compare"
    return f"{does} on {comparison.seeds - missed} of {comparison.seeds} seeds only"


def _never(comparison: Comparison, group: Sequence[Standing], goal: str) -> str:
    """Return `does not reach it within 40 s`, of the shortest run; `never reaches it` if some run diverged or
    collapsed, because more time would not help."""
    several = len(group) > 1
    if comparison.aim is None:
        return f"never end{'' if several else 's'} with a loss to compare"
    ends_s = [end_s(run) for standing in group for run in standing.runs]
    if any(map(math.isinf, ends_s)):
        return f"never reach{'' if several else 'es'} {goal}"
    return f"do{'' if several else 'es'} not reach {goal} within {three_digits(min(ends_s))} s"


def _share(standing: Standing) -> str:
    return f"{len(standing.scores) - standing.missed} of {len(standing.scores)} seeds"


def three_digits(value: float) -> str:
    """Return a number with three digits, and no fewer than its whole part."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def _decimals(values: Sequence[float]) -> list[str]:
    """Write ascending ratios with the same decimals: two digits of the smallest, and enough to distinguish ratios from
    1."""
    if values[-1] >= 1e4:
        return [f"{value:.2g}" for value in values]
    wanted = range(0 if values[0] >= 10 else 1, 4)
    decimals = next((count for count in wanted if float(f"{values[0]:.{count}f}") > 1), 4)
    return [f"{value:.{decimals}f}" for value in values]


@dataclass(frozen=True)
class Overtaking:
    """Hold the crossing of two contenders along a key.

    below, above: names of the contenders that lead at low and at high values. algos: their algorithms. bounds: the two
    values that enclose the crossing of each seed; 0 and infinity mean no bound. runs: {value of the key: pairs of runs
    of the two contenders, one for each seed run there}."""

    key: str
    below: str
    above: str
    algos: tuple[str, str]
    bounds: Sequence[tuple[float, float]]
    runs: Mapping[float, Sequence[tuple[Run, Run]]]

    @property
    def value(self) -> Estimate:
        """Return the crossing: median and interval over seeds."""
        lows, highs = (estimate(ends) for ends in zip(*self.bounds, strict=True))
        return Estimate(math.sqrt(lows.median * highs.median), lows.low, highs.high, len(self.bounds))

    @property
    def all_runs(self) -> list[Run]:
        """Return the runs of all values."""
        return [run for pairs in self.runs.values() for pair in pairs for run in pair]

    def ratio(self, value: float) -> Estimate:
        """Return the ratio of the times of `above` and `below` at a value of the key, paired by seed."""
        below, above = zip(*self.runs[value], strict=True)
        return time_ratio(above, below)


def overtaking_sentence(overtaking: Overtaking) -> str:
    """Return `bandwidth: gossip reaches a test accuracy of 0.9 first below 310 Mbit/s [250 Mbit/s, 400 Mbit/s], sync
    above it`, with its confidence."""
    value, seeds = overtaking.value, len(overtaking.bounds)
    low = in_its_unit(overtaking.key, value.low) if value.low > 0 else "unknown"
    high = in_its_unit(overtaking.key, value.high) if math.isfinite(value.high) else "unknown"
    sure = f"; confidence {coverage(seeds, left_out(seeds)):.0%} from {seeds} seeds" if seeds > 1 else "; one seed"
    outside = sum(low == 0 or math.isinf(high) for low, high in overtaking.bounds)
    unbounded = f"; {outside} of them without a crossing in the bracket" if outside else ""
    goal = aim_text(aim_of(overtaking.all_runs[0]))
    name, below, above = quantity(overtaking.key, []).name, in_sentence(overtaking.below), in_sentence(overtaking.above)
    return (
        f"{name}: {below} reaches {goal} first below {in_its_unit(overtaking.key, value.median)} "
        f"[{low}, {high}], {above} above it{sure}{unbounded}."
    )


def in_its_unit(key: str, value: float) -> str:
    """Return a value of a key as people read it: `310 Mbit/s`."""
    unit = unit_of(key)
    return f"{value:.3g}" if unit is None else in_units(value, unit)
