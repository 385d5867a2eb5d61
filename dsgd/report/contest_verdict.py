"""Say in two sentences who won a contest, by how much, who cannot be told apart, and who never got there."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dsgd.record.reader import number
from dsgd.report.contest import LEAST_CONFIDENCE, Contest, Standing, confidence_of, distinguishable
from dsgd.report.interval import CONFIDENCE, Estimate, estimate
from dsgd.report.labels import status_note
from dsgd.report.time_to_target import end_s

MOST_NAMES = 4  # of a list; the table has the others


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
    if math.isinf(ratio.high):
        low, middle = _decimals([ratio.low, ratio.median])
        return f"{middle} ({low} or more) times"
    low, middle, high = _decimals([ratio.low, ratio.median, ratio.high])
    return f"{middle} times" if low == high else f"{middle} ({low}–{high}) times"


def listed(names: Sequence[str]) -> str:
    """Return `a`, `a and b`, `a, b and c`; of more than MOST_NAMES the first, and how many others."""
    shown = [in_sentence(name) for name in names]
    if len(shown) > MOST_NAMES:
        shown = [*shown[: MOST_NAMES - 1], f"{len(shown) - MOST_NAMES + 1} others"]
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
    name, value = in_sentence(first.name), _value(contest, first)
    if not others:
        reaches = f"reaches {goal} {after} {value}" if timed else f"ends with a loss of {value}"
        some = f" (on {_share(first)})" if first.missed else ""
        return f"{name} {reaches}{some}; there is nothing to compare it with"
    rivals = [standing for standing in others if standing.missed < contest.seeds]
    if tied := [standing.name for standing in rivals if not standing.behind]:
        what = f"at {goal} {after} {value}" if timed else f"with a loss of {value} at the end"
        all_tied = len(tied) == len(others) > 1
        subject = f"none of the {len(others)} others can" if all_tied else f"{listed(tied)} cannot"
        return f"{name} is ahead, {what}, but {subject} be told apart from it"
    near = rivals[0] if rivals else others[0]
    factor, rival = times(near.ratio), in_sentence(near.name)
    if not rivals or (math.isinf(near.score.median) and not factor):
        mostly = " on most seeds" if rivals or first.missed else ""
        what = f"reaches {goal}{mostly}, {after}" if timed else f"ends with a loss{mostly}, of"
        return f"Only {name} {what} {value}"
    if contest.prices is not None:
        high = f"{factor} as high" if factor else "higher"
        return f"{name} reaches {goal} at the least cost, {value}; that of {rival} is {high}"
    if timed:
        lead = f"; {rival} takes {factor} as long" if factor else f", before {rival}"
        return f"{name} reaches {goal} first, after {value}{lead}"
    return (
        f"{name} ends with the lowest loss, {value}; that of {rival} is {f'{factor} as high' if factor else 'higher'}"
    )


def _nobody(contest: Contest) -> str:
    first, *others = contest.standings
    name, reached = in_sentence(first.name), contest.seeds - first.missed
    does = f"reaches {contest.goal.text}" if contest.goal.level is not None else "ends with a loss"
    if not others:
        note = status_note(first.contender.runs)
        return (
            f"{name} {does} on {_share(first)} only{note}"
            if reached
            else f"{name} {_never(contest, [first], contest.goal.text)}{note}"
        )
    if reached:
        return f"None of the {len(contest.standings)} contenders {does} on most seeds; {name} does on {_share(first)}"
    accuracy = estimate([number(run.final("test_accuracy")) for run in first.contender.runs]).median
    nearest = contest.goal.metric == "accuracy" and accuracy < (contest.goal.level or 0.0)
    near = f"; {name} ends nearest to it, at {accuracy:.3g}" if nearest else ""
    least_s = min(end_s(run) for run in contest.runs)
    within = f" within {three_digits(least_s)} s" if contest.goal.level is not None and math.isfinite(least_s) else ""
    return f"None of the {len(contest.standings)} contenders {does}{within}{near}"


def _others(contest: Contest) -> str:
    """Return the second sentence: who leads those behind a tie, ties among those behind, and who missed the goal."""
    others = contest.standings[1:]
    if not others:
        return ""
    rivals = [standing for standing in others if standing.missed < contest.seeds]
    behind = [standing for standing in rivals if standing.behind]
    clauses = []
    if 0 < len(behind) < len(rivals) and math.isfinite(behind[0].score.median) and (factor := times(behind[0].ratio)):
        takes = f"takes {factor} as long" if contest.goal.level is not None else f"has {factor} its loss"
        if contest.prices is not None:
            takes = f"costs {factor} as much"
        clauses.append(f"{in_sentence(behind[0].name)} {takes}")
    clauses += [
        f"{listed(names)} cannot be told apart"
        for names in _ties(contest, [standing for standing in behind if not standing.missed])
    ]
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
    groups: dict[tuple[int, str], list[Standing]] = {}
    for index, standing in enumerate(contest.standings):
        mentioned = nobody and (index == 0 or standing.missed == contest.seeds)  # by the first sentence
        note = status_note(standing.contender.runs)
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
    least_s = min(end_s(run) for standing in group for run in standing.contender.runs)
    if any(math.isinf(end_s(run)) for standing in group for run in standing.contender.runs):
        return f"never reach{'' if several else 'es'} {goal}"
    return f"do{'' if several else 'es'} not reach {goal} within {three_digits(least_s)} s"


def _share(standing: Standing) -> str:
    return f"{len(standing.scores) - standing.missed} of {len(standing.scores)} seeds"


def _value(contest: Contest, standing: Standing) -> str:
    """Return the median score with three digits and its unit."""
    return f"{three_digits(standing.score.median)}{contest.unit}"


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
