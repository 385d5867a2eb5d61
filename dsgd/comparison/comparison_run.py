"""Carry out a comparison: tune, measure, measure under other conditions."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dsgd.cli.folders import folder_lock
from dsgd.cli.tally import Tally
from dsgd.comparison.crossing_runs import find_crossing
from dsgd.comparison.entries import Entry
from dsgd.comparison.options import CompareOptions
from dsgd.comparison.preparation import Prepared, prepare
from dsgd.comparison.rounds import LocalRunner, Runner, SlurmRunner
from dsgd.comparison.stages import ComparisonResult, Search, cells, contenders_of, measure, measure_cell, tune
from dsgd.comparison.tuning import open_edges, working_range
from dsgd.host.signals import Interruption
from dsgd.record.safe_text import counted


@contextmanager
def compare(
    overrides: Sequence[str],
    folder: Path,
    interruption: Interruption,
    config_dir: str | None = None,
    at_once: int | None = None,
    part: str = "",
) -> Iterator[ComparisonResult]:
    """Tune and measure the contenders of a command line, as far as runs are missing. folder: folder of the comparison,
    locked until the block ends. at_once: number of parallel runs on this machine; None: one a core. part: this
    comparison among several of a command, for the progress bar.

    Raises ValueError, one line, before anything is written; Unfinished; KeyboardInterrupt."""
    with run_comparison(prepare(overrides, config_dir), folder, interruption, at_once, part) as result:
        yield result


@contextmanager
def run_comparison(
    prepared: Prepared, folder: Path, interruption: Interruption, at_once: int | None = None, part: str = ""
) -> Iterator[ComparisonResult]:
    """Tune and measure the contenders of a comparison that was prepared, as `compare`."""
    options, composer, entries = prepared.options, prepared.composer, prepared.entries
    tally = Tally(part)
    runner: Runner = (
        SlurmRunner(folder, prepared.config_dir, prepared.of_slurm)
        if options.on == "slurm"
        else LocalRunner(folder, prepared.config_dir, interruption, tally, at_once)
    )
    interruption.check()
    prepared.check_folder(folder)
    with folder_lock(folder, "--folder"):
        prepared.claim(folder)
        print(_beginning(entries, options, folder), file=sys.stderr)
        conditions, each = cells(options.whatif), len(entries) * options.seeds
        try:
            searches = tune(entries, composer, runner, options, later=each * (1 + len(conditions)))
            for search in searches:
                print(_tuned(search), file=sys.stderr)
            runs = measure(searches, composer, runner, later=each * len(conditions))
            others = [
                measure_cell(cell, searches, runs, composer, runner, later=each * (len(conditions) - i))
                for i, cell in enumerate(conditions, start=1)
            ]
            bracket = options.search
            overtaking = None if bracket is None else find_crossing(bracket, searches, runs, composer, runner)
        finally:
            tally.close()
        yield ComparisonResult(folder, options, searches, contenders_of(searches, runs), others, overtaking)


def _beginning(entries: Sequence[Entry], options: CompareOptions, folder: Path) -> str:
    names = "; ".join(entry.name for entry in entries)
    tuned = ", ".join(dict.fromkeys(axis.key for entry in entries for axis in entry.axes)) or "nothing"
    contenders = "contender" if len(entries) == 1 else f"{len(entries)} contenders"
    return f"{contenders}: {names}\ntuned: {tuned}; measured on {counted(options.seeds, 'seed')}; records in {folder}"


def _tuned(search: Search) -> str:
    """Return the line on a contender's tuned values, with doubts."""
    if not search.outcomes:
        return f"{search.entry.name}: nothing tuned"
    works = working_range(search.outcomes)
    span = f"works from {works[0]:g} to {works[1]:g}" if works else "works with none of the values tried"
    edges = open_edges(search.entry.axes, search.outcomes)
    left = f"; still at the edge of {', '.join(edges)} after compare.tune_values" if edges else ""
    return f"{search.label(search.chosen)}: chosen in {counted(len(search.runs), 'run')}, {span}{left}"
