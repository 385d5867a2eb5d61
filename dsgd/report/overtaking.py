"""Say at which value of a key one contender overtakes another, with an interval over seeds, in a sentence and a table.

The crossing of each seed lies between two values of the key. The interval is that of the median over seeds, its low end
from the lower and its high end from the upper of the two values, so that it holds whatever lies between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsgd.record.reader import Run
from dsgd.report.contest import Goal, goal_of, score
from dsgd.report.contest_verdict import in_sentence
from dsgd.report.interval import Estimate, coverage, estimate, left_out
from dsgd.report.ratio import paired_ratio
from dsgd.report.setting import whole_setting
from dsgd.report.table_layout import Cell, ReportTable, exact
from dsgd.report.time_to_target import end_s
from dsgd.report.units import EXACT_DIGITS, in_units, quantity, unit_of
from dsgd.safe_text import for_terminal


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
        sides = list(zip(*self.runs[value], strict=True))
        scores = [[score(run, self.goal) for run in side] for side in sides]
        ends = [[end_s(run) for run in side] for side in sides]
        return paired_ratio(scores[1], scores[0], ends=ends[1], reference_ends=ends[0])


def overtaking_sentence(overtaking: Overtaking) -> str:
    """Return `bandwidth: gossip reaches a test accuracy of 0.9 first below 310 Mbit/s [250 Mbit/s, 400 Mbit/s], sync
    above it`, and how sure that is."""
    value, seeds = overtaking.value, len(overtaking.bounds)
    low = written(overtaking.key, value.low) if value.low > 0 else "unknown"
    high = written(overtaking.key, value.high) if math.isfinite(value.high) else "unknown"
    sure = f"; confidence {coverage(seeds, left_out(seeds)):.0%} from {seeds} seeds" if seeds > 1 else "; one seed"
    outside = sum(low == 0 or math.isinf(high) for low, high in overtaking.bounds)
    unbounded = f"; {outside} of them without a crossing in the bracket" if outside else ""
    return (
        f"{quantity(overtaking.key, []).name}: {in_sentence(overtaking.below)} reaches {overtaking.goal.text} first "
        "below "
        f"{written(overtaking.key, value.median)} [{low}, {high}], {in_sentence(overtaking.above)} above "
        f"it{sure}{unbounded}."
    )


def written(key: str, value: float) -> str:
    """Return a value of a key as people read it: `310 Mbit/s`."""
    unit = unit_of(key)
    return f"{value:.3g}" if unit is None else in_units(value, unit)


def overtaking_table(overtaking: Overtaking, caption: str = "") -> ReportTable:
    """Return a row for each value of the key that was tried, ascending.

    In the CSV file each pair of runs has a line."""
    names = (overtaking.below, overtaking.above)
    headings = [overtaking.key, "seeds", *(f"{name} (s)" for name in names), "ratio"]
    rows: list[list[Cell]] = []
    csv_rows: list[list[Any]] = [[overtaking.key, "seed", *(f"{name}_s" for name in ("below", "above"))]]
    for value, pairs in sorted(overtaking.runs.items()):
        sides = list(zip(*pairs, strict=True))
        times = [
            estimate([score(run, overtaking.goal) for run in side], censored=[end_s(run) for run in side])
            for side in sides
        ]
        ratio = overtaking.ratio(value)
        text = f"{value:.{EXACT_DIGITS}g}"
        rows.append([text, len(pairs), *times, "undecided" if math.isnan(ratio.median) else ratio])
        for pair in pairs:
            csv_rows.append([text, pair[0].setting("seed"), *(exact(score(run, overtaking.goal)) for run in pair)])
    return ReportTable(headings, frozenset({overtaking.key}), rows, csv_rows, caption, whole=_whole(overtaking))


def _whole(overtaking: Overtaking) -> dict[str, Any]:
    value = overtaking.value
    crossing = {
        "key": overtaking.key,
        "below": for_terminal(overtaking.below),
        "above": for_terminal(overtaking.above),
        "median": value.median,
        "low": value.low or None,
        "high": value.high if math.isfinite(value.high) else None,
        "bounds": [[low or None, high if math.isfinite(high) else None] for low, high in overtaking.bounds],
    }
    return {"crossing": crossing} | whole_setting(overtaking.all_runs)
