"""Say in sentences what runs show: who won a contest, where one contender overtakes another, and who of some runs was
first; by how much, who cannot be told apart, and who never got there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from dsgd.record.reader import Run, number
from dsgd.report.contest import LEAST_CONFIDENCE, Contest, Goal, Standing, confidence_of, distinguishable, goal_of
from dsgd.report.fields import end_s, time_to_target_s, unsmoothed_note
from dsgd.report.interval import CONFIDENCE, Estimate, coverage, estimate, left_out
from dsgd.report.labels import Series, goal_text, series, status_note
from dsgd.report.prediction import sentences
from dsgd.report.ratio import time_ratio
from dsgd.report.units import in_units, quantity, unit_of

_OF_CLOCK = {"virtual": "of virtual time", "wall": "of wall time on the machine it ran on"}


def contest_verdict(contest: Contest) -> str:
    """Return one or two sentences: who is first, and what is to be known of the others. Times are medians over seeds,
    ratios are paired and have their interval in brackets."""
    sentences = [_first(contest) + _caution(contest), _others(contest)]
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


def times(ratio: Estimate) -> str:
    """Return `1.7 (1.5–2.0) times` for a ratio whose interval lies above 1; empty where it has no finite part."""
    if math.isinf(ratio.low):
        return ""
    if not math.isfinite(ratio.median):
        return f"at least {_decimals([ratio.low])[0]} times"
    low, middle, *high = _decimals([ratio.low, ratio.median, *[ratio.high] * math.isfinite(ratio.high)])
    interval = f" ({low} or more)" if not high else f" ({low}–{high[0]})" if low != high[0] else ""
    return f"{middle}{interval} times"


def listed(names: Sequence[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`."""
    shown = [in_sentence(name) for name in names]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def in_sentence(name: str) -> str:
    """Return `gossip (tau=10, 16 nodes)` for `gossip, tau=10, 16 nodes`, whose commas would be those of a list."""
    head, _, options = name.partition(", ")
    return f"{head} ({options})" if options else head


def _caution(contest: Contest) -> str:
    """Say that there are too few seeds for so many contenders; empty where there are enough, and for one contender."""
    count = len(contest.standings)
    if contest.seeds == 1 and count > 1:
        return "; one seed decides nothing"
    nobody = math.isinf(contest.standings[0].score.median)
    if contest.confidence >= LEAST_CONFIDENCE or count == 1 or nobody:
        return ""
    enough = contest.seeds_needed
    if count == 2:
        confidence = f"confidence {contest.confidence:.0%}, {confidence_of(enough, 2):.0%} with {enough}"
        return f"; {contest.seeds} seeds decide little ({confidence})"
    needed = f"with {enough} all differences would hold together with {CONFIDENCE:.0%} confidence"
    return f"; {contest.seeds} seeds decide little between {count} contenders ({needed})"


def _first(contest: Contest) -> str:
    first, *others = contest.standings
    if math.isinf(first.score.median):
        return _nobody(contest)
    timed, goal = contest.goal.level is not None, contest.goal.text
    after = "after" if contest.prices is None else "for"
    name, value = in_sentence(first.name), f"{three_digits(first.score.median)}{contest.unit}"
    if not others:
        reaches = f"reaches {goal} {after} {value}" if timed else f"ends with a loss of {value}"
        some = f" (on {_share(first)})" if first.missed else ""
        return f"{name} {reaches}{some}; there is nothing to compare it with"
    rivals = [standing for standing in others if standing.missed < contest.seeds]
    if tied := [standing.name for standing in rivals if not standing.behind]:
        what = f"at {goal} {after} {value}" if timed else f"with a loss of {value} at the end"
        return f"{name} is ahead, {what}, but {listed(tied)} cannot be told apart from it"
    near = rivals[0] if rivals else others[0]
    factor, rival = times(near.ratio), in_sentence(near.name)
    if not rivals or (math.isinf(near.score.median) and not factor):
        mostly = " on most seeds" if rivals or first.missed else ""
        what = f"reaches {goal}{mostly}, {after}" if timed else f"ends with a loss{mostly}, of"
        return f"Only {name} {what} {value}"
    high = f"{factor} as high" if factor else "higher"
    if contest.prices is not None:
        return f"{name} reaches {goal} at the least cost, {value}; that of {rival} is {high}"
    if timed:
        lead = f"; {rival} takes {factor} as long" if factor else f", before {rival}"
        return f"{name} reaches {goal} first, after {value}{lead}"
    return f"{name} ends with the lowest loss, {value}; that of {rival} is {high}"


def _nobody(contest: Contest) -> str:
    first, *others = contest.standings
    name, reached = in_sentence(first.name), contest.seeds - first.missed
    does = f"reaches {contest.goal.text}" if contest.goal.level is not None else "ends with a loss"
    if not others:
        misses = f"{does} on {_share(first)} only" if reached else _never(contest, [first], contest.goal.text)
        return f"{name} {misses}{status_note(first.runs)}"
    if reached:
        return f"None of the {len(contest.standings)} contenders {does} on most seeds; {name} does on {_share(first)}"
    accuracy = estimate([number(run.final("test_accuracy")) for run in first.runs]).median
    nearest = contest.goal.metric == "accuracy" and accuracy < (contest.goal.level or 0.0)
    all_names = [standing.name for standing in contest.standings]
    none, near = f"Of {listed(all_names)} none", ""
    if nearest:
        none, near = f"None of the {len(all_names)} contenders", f"; {name} ends nearest to it, at {accuracy:.3g}"
        near += f", before {listed(all_names[1:])}"
    least_s = min(end_s(run) for run in contest.runs)
    within = f" within {three_digits(least_s)} s" if contest.goal.level is not None and math.isfinite(least_s) else ""
    return f"{none} {does}{within}{near}"


def _others(contest: Contest) -> str:
    """Return the second sentence: all that the first has not named. How far who is behind, ties among them, and who
    missed the goal."""
    others = contest.standings[1:]
    if not others:
        return ""
    rivals = [standing for standing in others if standing.missed < contest.seeds]
    behind = [standing for standing in rivals if standing.behind]
    ties = _ties(contest, [standing for standing in behind if not standing.missed])
    tied = {name for names in ties for name in names}
    after_tie = behind[:1] if len(behind) < len(rivals) and behind and math.isfinite(behind[0].score.median) else []
    alone = [standing for standing in behind[1:] if not standing.missed and standing.name not in tied]
    factors = [(in_sentence(standing.name), times(standing.ratio)) for standing in [*after_tie, *alone]]
    verb, measure = ("has", " its loss") if contest.goal.level is None else ("takes", " as long")
    verb, measure = (verb, measure) if contest.prices is None else ("costs", " as much")
    clauses = []
    if known := [(name, factor) for name, factor in factors if factor]:
        (name, factor), *more = known
        clauses.append(", ".join([f"{name} {verb} {factor}{measure}", *map(" ".join, more)]))
    clauses += [f"{name} is behind" for name, factor in factors if not factor]
    clauses += [f"{listed(names)} cannot be told apart" for names in ties]
    return "; ".join([*clauses, *_missed(contest)])


def _ties(contest: Contest, behind: Sequence[Standing]) -> list[list[str]]:
    """Gather neighbours of the order, none of whom can be told apart from any other of its group; groups of one are
    left out."""
    groups: list[list[Standing]] = []
    for standing in behind:
        if groups and not any(distinguishable(contest, standing, other) for other in groups[-1]):
            groups[-1].append(standing)
        else:
            groups.append([standing])
    return [[standing.name for standing in group] for group in groups if len(group) > 1]


def _missed(contest: Contest) -> list[str]:
    """Return a clause for each way in which contenders did not get there: never, on some seeds, diverged, collapsed."""
    nobody = math.isinf(contest.standings[0].score.median)
    all_named = contest.standings[0].missed == contest.seeds
    groups: dict[tuple[int, str], list[Standing]] = {}
    for index, standing in enumerate(contest.standings):
        mentioned = nobody and (index == 0 or all_named)  # by the first sentence
        note = status_note(standing.runs)
        if standing.missed and (note or not mentioned):
            groups.setdefault((standing.missed, note), []).append(standing)
    return [
        f"{listed([standing.name for standing in group])} {_how(contest, group)}{note}"
        for (_, note), group in groups.items()
    ]


def _how(contest: Contest, group: Sequence[Standing]) -> str:
    """Return what follows the names of those who missed the goal on equally many seeds."""
    missed, several, timed = group[0].missed, len(group) > 1, contest.goal.level is not None
    if missed == contest.seeds:
        return _never(contest, group, "it")
    does = f"reach{'' if several else 'es'} it" if timed else f"end{'' if several else 's'} with a loss to compare"
    return f"{does} on {contest.seeds - missed} of {contest.seeds} seeds only"


def _never(contest: Contest, group: Sequence[Standing], goal: str) -> str:
    """Return `does not reach it within 40 s`, of the shortest run; `never reaches it` where some run diverged or
    collapsed, which more time would not help."""
    several = len(group) > 1
    if contest.goal.level is None:
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
    """Write ascending ratios with the same decimals: two digits of the smallest, and so many that what is above 1
    does not read 1."""
    if values[-1] >= 1e4:
        return [f"{value:.2g}" for value in values]
    wanted = range(0 if values[0] >= 10 else 1, 4)
    decimals = next((count for count in wanted if float(f"{values[0]:.{count}f}") > 1), 4)
    return [f"{value:.{decimals}f}" for value in values]


@dataclass(frozen=True)
class Overtaking:
    """Hold where one contender overtakes another along a key.

    below, above: names of the contenders that lead at low and at high values. algos: their algorithms. bounds: of each
    seed the two values between which its crossing lies, 0 and infinity where no value bounds it. runs: by the value of
    the key, the pairs of runs of the two contenders, one for each seed that was run there."""

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
    def goal(self) -> Goal:
        """Return what the contenders aim at."""
        return goal_of(self.all_runs[0])

    @property
    def all_runs(self) -> list[Run]:
        """Return the runs of all values."""
        return [run for pairs in self.runs.values() for pair in pairs for run in pair]

    def ratio(self, value: float) -> Estimate:
        """Return the ratio of the times of `above` to those of `below` at a value of the key, paired by seed."""
        below, above = zip(*self.runs[value], strict=True)
        return time_ratio(above, below)


def overtaking_sentence(overtaking: Overtaking) -> str:
    """Return `bandwidth: gossip reaches a test accuracy of 0.9 first below 310 Mbit/s [250 Mbit/s, 400 Mbit/s], sync
    above it`, and how sure that is."""
    value, seeds = overtaking.value, len(overtaking.bounds)
    low = written(overtaking.key, value.low) if value.low > 0 else "unknown"
    high = written(overtaking.key, value.high) if math.isfinite(value.high) else "unknown"
    sure = f"; confidence {coverage(seeds, left_out(seeds)):.0%} from {seeds} seeds" if seeds > 1 else "; one seed"
    outside = sum(low == 0 or math.isinf(high) for low, high in overtaking.bounds)
    unbounded = f"; {outside} of them without a crossing in the bracket" if outside else ""
    name, below, above = quantity(overtaking.key, []).name, in_sentence(overtaking.below), in_sentence(overtaking.above)
    return (
        f"{name}: {below} reaches {overtaking.goal.text} first below {written(overtaking.key, value.median)} "
        f"[{low}, {high}], {above} above it{sure}{unbounded}."
    )


def written(key: str, value: float) -> str:
    """Return a value of a key as people read it: `310 Mbit/s`."""
    unit = unit_of(key)
    return f"{value:.3g}" if unit is None else in_units(value, unit)


def verdict(runs: Sequence[Run]) -> list[str]:
    """Say who reached the target first and who never did, who did not complete or collapsed and who was idle most.

    Of several seeds the median counts, and of times as long the median of the ratios of the same seed. Returns no
    sentence where there is nothing to compare. Virtual and wall times are compared only in the sentence on predictions
    and measurements."""
    compared = series(runs)
    if len(compared) < 2:
        return []
    clocks = sorted({clock for group in compared if (clock := _clock(group))})
    timed = [[group for group in compared if _clock(group) in (clock, None)] for clock in clocks]
    rivals = [(clock, groups) for clock, groups in zip(clocks, timed, strict=True) if len(groups) > 1]
    first = [text for clock, groups in rivals for text in _first_to_target(groups, clock)]
    idle = [text for _, groups in rivals for text in _most_idle(groups)]
    texts = [*first, unsmoothed_note(runs), *_ended_badly(compared), *idle, *sentences(runs)]
    return [text for text in texts if text]


def _clock(group: Series) -> str | None:
    return next((run.clock for run in group.runs if run.clock), None)


def _first_to_target(compared: Sequence[Series], clock: str) -> list[str]:
    targets = {(run.target_field, run.target) for group in compared for run in group.runs}
    if len(targets) != 1 or (None, None) in targets:
        return []
    kind, _, level = goal_text(compared[0].runs).rpartition(" ")
    goal = f"a {kind} of {level}"
    reached: list[tuple[float, Series]] = []
    missed: list[str] = []
    for group in compared:
        known = [seconds for run in group.runs if (seconds := time_to_target_s(run)) is not None]
        without, count = len(group.runs) - len(known), len(group.runs)
        if not without:
            reached.append((median(known), group))
        elif all(run.status == "completed" for run in group.runs):
            missed.append(f"{group.label} ({without} of {count} seeds)" if known else group.label)
    texts = []
    if reached:
        best_s, first = min(reached, key=lambda each: (_sooner(each[1], reached), each[0], each[1].label))
        slower = [each for each in reached if each[1] is not first]
        others = [(seconds, group, time_ratio(group.runs, first.runs)) for seconds, group in slower]
        others.sort(key=lambda each: (math.isnan(each[2].median), each[2].median, each[0], each[1].label))
        behind = [f"{group.label} {_ratio_text(seconds, ratio)}" for seconds, group, ratio in others if best_s > 0]
        text = f"{first.label} reaches {goal} first, after {best_s:.3g} s {_OF_CLOCK[clock]}"
        texts.append(text + (f"; times as long, seed by seed: {', '.join(behind)}" if behind else ""))
    if missed:
        texts.append(f"{goal} is not reached within the budget by {', '.join(missed)}")
    return texts


def _sooner(group: Series, reached: Sequence[tuple[float, Series]]) -> int:
    """Return how many others are sooner than one on most of the seeds that both have."""
    return sum(time_ratio(other.runs, group.runs).median < 1 for _, other in reached if other is not group)


def _ratio_text(seconds: float, ratio: Estimate) -> str:
    """Return a ratio with its interval over seeds; the median time of who has no seed in common with the first."""
    if not ratio.count:
        return f"({seconds:.3g} s, no seed in common)"
    interval = f" [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio.low < ratio.high else ""
    return f"{ratio.median:.2f}{interval}"


def _ended_badly(compared: Sequence[Series]) -> list[str]:
    texts = []
    for group in compared:
        if note := status_note(group.runs):
            completed = all(run.status == "completed" for run in group.runs)
            texts.append(f"{'ended worse than it began' if completed else 'did not complete'}: {group.label}{note}")
    return texts


def _most_idle(compared: Sequence[Series]) -> list[str]:
    idle: list[tuple[float, str]] = []
    for group in compared:
        shares = [number(run.final("idle_fraction_mean")) for run in group.runs]
        if all(share == share for share in shares):  # not NaN
            idle.append((median(shares), group.label))
    if len(idle) < 2 or min(idle)[0] == max(idle)[0]:
        return []
    (least, patient), (most, waiting) = min(idle), max(idle)
    return [f"{waiting} waits most, its workers are idle {most:.0%} of the time; {patient} least, {least:.0%}"]
