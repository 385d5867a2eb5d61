"""The stages of a comparison: tune every contender, measure it, and measure it again under other conditions.

If every step waits for all workers, the same samples give the same parameters on any cluster. Then other conditions are
run without gradients: the marks of the measured run get the times of the timing-only run. Lock-step alone is not
enough: at a mark, fast workers may be some steps ahead of slow ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dsgd.cli.compose import Job
from dsgd.comparison.comparison_verdict import Overtaking
from dsgd.comparison.contenders import Contender
from dsgd.comparison.entries import Composer, Entry
from dsgd.comparison.options import CompareOptions
from dsgd.comparison.rounds import Runner
from dsgd.comparison.tuning import (
    Outcome,
    Values,
    best,
    expected_values,
    limit_s,
    median_outcome,
    next_values,
    outcome,
    working_range,
)
from dsgd.record.reader import Run
from dsgd.report.fields import censored_at_s, crossings, target_crossing, time_to_target_s

WAITS = ("idle_fraction_mean", "idle_fraction_max")


@dataclass
class Search:
    """The tuning of one contender. outcomes: outcome of each tried value. runs: its runs."""

    entry: Entry
    outcomes: dict[Values, Outcome] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)

    @property
    def chosen(self) -> Values:
        """Return the chosen values; empty without tuning."""
        return best(self.outcomes) if self.outcomes else ()

    def label(self, values: Values) -> str:
        """Return the contender with these values: `gossip lr=0.2`."""
        chosen = [
            f"{axis.key.rpartition('.')[2]}={value:g}" for axis, value in zip(self.entry.axes, values, strict=True)
        ]
        return " ".join([self.entry.name, *chosen])


@dataclass(frozen=True)
class MeasuredCell:
    """The contenders under other conditions. conditions: {key: value}. runs: {name of the contender: runs}. measured:
    contenders whose runs had gradients; other runs are derived."""

    conditions: Mapping[str, Any]
    runs: Mapping[str, list[Run]]
    measured: frozenset[str]


def tune(
    entries: Sequence[Entry], composer: Composer, runner: Runner, options: CompareOptions, later: int = 0
) -> list[Search]:
    """Find the values of every contender's keys, in rounds of runs for all of them. later: number of following runs."""
    most, fine = options.tune_values, options.tune_fine
    searches = [Search(entry) for entry in entries]
    while True:
        jobs: list[Job] = []
        owners: list[tuple[Search, Values, int]] = []
        expected = 0
        for search in searches:
            values = next_values(search.entry.axes, search.outcomes, most, fine) if search.entry.axes else []
            limit = limit_s(search.outcomes)
            for point, runs in composer.tuning(search.entry, values, None if math.isinf(limit) else limit).items():
                jobs += [replace(run, label=f"tuning {search.label(point)}") for run in runs]
                owners.append((search, point, len(runs)))
            if values:
                left = expected_values(search.entry.axes, search.outcomes, most, fine) - len(values)
                expected += left * owners[-1][2]
        if not jobs:
            return searches
        records = iter(runner.run(jobs, expected + later, about=True))
        for search, point, count in owners:
            tried = [next(records) for _ in range(count)]
            search.outcomes[point] = median_outcome([outcome(run) for run in tried])
            search.runs += tried


def measure(
    searches: Sequence[Search], composer: Composer, runner: Runner, *conditions: str, later: int = 0
) -> dict[str, list[Run]]:
    """Return the measured runs of every contender, by its name, in the order of the seeds. later: number of following
    runs."""
    jobs = {
        search.entry.name: [
            replace(run, label=" ".join(["measuring", search.label(search.chosen), *conditions]))
            for run in composer.measuring(search.entry, search.chosen, *conditions)
        ]
        for search in searches
    }
    records = iter(runner.run([job for of_entry in jobs.values() for job in of_entry], later))
    return {name: [next(records) for _ in of_entry] for name, of_entry in jobs.items()}


def cells(whatif: Mapping[str, Sequence[Any]] | None) -> list[dict[str, Any]]:
    """Return every combination of the values of other conditions; empty without conditions."""
    if not whatif:
        return []
    return [dict(zip(whatif, values, strict=True)) for values in itertools.product(*whatif.values())]


def can_derive(measured: Run, barrier: bool, keys: list[str]) -> bool:
    """Return whether other conditions change only the times of a simulated run.

    barrier: `Algorithm.barrier`. keys: keys of the conditions. A run that ended by its time before the target cannot be
    derived: it might reach the target."""
    timed_out = measured.setting("budget.time_s") is not None and time_to_target_s(measured) is None
    only_times = all(key.startswith("cluster.") or key == "cluster" for key in keys)
    return barrier and only_times and measured.clock == "virtual" and not timed_out


def whatif_run(measured: Run, timing: Run) -> Run:
    """Return the run derived from a timing-only run: with the marks of the measured run, up to its end."""
    samples, seconds = ([float(mark[name]) for mark in timing.metrics] for name in ("samples", "time_s"))
    marks: list[dict[str, Any]] = [
        {**mark, "time_s": float(np.interp(mark["samples"], samples, seconds))}
        for mark in measured.metrics
        if mark["samples"] <= samples[-1]
    ]
    summary = {**(measured.summary or {}), "time_s": marks[-1]["time_s"]}
    run = replace(measured, config=timing.config, metrics=marks, summary=summary)
    reached = crossings(run)
    chosen = target_crossing(run)
    times: dict[str, float | None] = {
        "time_to_target_s": chosen and chosen.time_s,
        "target_resolution_s": chosen and chosen.resolution_s,
        "target_censored_at_s": censored_at_s(run),
        "first_crossing_s": reached.first and reached.first.time_s,
        "stable_crossing_s": reached.stable and reached.stable.time_s,
        **{name: (timing.summary or {}).get(name) for name in WAITS},
    }
    return replace(run, summary=summary | {name: value for name, value in times.items() if name in summary})


def derives(search: Search, before: Mapping[str, list[Run]], keys: list[str]) -> bool:
    """Check that other values of these keys change only the times of a contender's measured runs."""
    return all(can_derive(run, search.entry.barrier, keys) for run in before[search.entry.name])


def measure_cell(
    conditions: Mapping[str, Any],
    searches: Sequence[Search],
    before: Mapping[str, list[Run]],
    composer: Composer,
    runner: Runner,
    later: int = 0,
) -> MeasuredCell:
    """Measure under other conditions, with the chosen values; derive runs whose times alone change.

    before: the measured runs of every contender, by its name. later: number of following runs."""
    overrides = composer.conditions(conditions)
    anew = [search for search in searches if not derives(search, before, list(conditions))]
    unchanged = [search for search in searches if search not in anew]
    timed = sum(len(before[search.entry.name]) for search in unchanged)
    runs = measure(anew, composer, runner, *overrides, later=timed + later)
    for name, timings in measure(unchanged, composer, runner, *overrides, "engine.gradients=none", later=later).items():
        runs[name] = [whatif_run(run, timing) for run, timing in zip(before[name], timings, strict=True)]
    return MeasuredCell(conditions, runs, frozenset(search.entry.name for search in anew))


@dataclass(frozen=True)
class ComparisonResult:
    """The contenders of a comparison with their measured runs.

    cells: results under other conditions. overtaking: crossing of two contenders; None: not requested."""

    folder: Path
    options: CompareOptions
    searches: Sequence[Search]
    contenders: Sequence[Contender]
    cells: Sequence[MeasuredCell]
    overtaking: Overtaking | None = None


def contenders_of(searches: Sequence[Search], runs: Mapping[str, Sequence[Run]]) -> list[Contender]:
    """Return the contenders with the chosen values. runs: measured, by the contender's name."""
    contenders: list[Contender] = []
    for search in searches:
        entry, measured = search.entry, runs[search.entry.name]
        values = {axis.key: value for axis, value in zip(entry.axes, search.chosen, strict=True)}
        works = working_range(search.outcomes) if search.outcomes else None
        spent = len(search.runs)
        contenders.append(Contender(entry.name, list(measured), chosen=values, works=works, spent=spent))
    return contenders
