"""Run the command `dsgd-compare`: which contender reaches the target soonest, each with the rate that suits it?"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dsgd.cli.arguments import check_quotes, command_parser, key_of, open_mappings
from dsgd.cli.compose import ConfigTree, options_of
from dsgd.cli.folders import check_file, check_writable, folder_lock
from dsgd.cli.own_script import show_use
from dsgd.cli.plot import CAPTION_HELP, LOG_HELP, log_axes
from dsgd.cli.tally import Tally
from dsgd.comparison.crossing_runs import check_crossing, check_engine, check_target, find_crossing
from dsgd.comparison.entries import Composer, Entry
from dsgd.comparison.options import CompareOptions
from dsgd.comparison.rounds import LocalRunner, Runner, SlurmRunner, Usage, command_status
from dsgd.comparison.stages import ComparisonResult, Search, cells, contenders_of, measure, measure_cell, tune
from dsgd.comparison.tuning import middle, open_edges, working_range
from dsgd.data.own_sets import sharing
from dsgd.host.signals import Interruption
from dsgd.record.lock import COMMAND_LOCK
from dsgd.record.safe_files import json_object, read_bounded, write_atomically
from dsgd.record.safe_text import counted
from dsgd.report.look import WIDTHS, Look
from dsgd.report.units import without_units
from dsgd.runner.plan import KnownModels, check_with_torch, plan_run
from dsgd.runner.values import ConfigError, build, ends_are_errors, key_prefix, shown

SETTING, SETTING_BYTES = "comparison.json", 2**20
# of the options, for the same comparison
FREE_TO_CHANGE = (
    "seeds", "whatif", "crossing", "bracket", "node_hour", "egress_gb", "verdict", "on", "tune_values",
)  # fmt: skip

EXAMPLES = """\
    dsgd-compare algo=sync,gossip,easgd nodes=8,16 data=shapes model=resnet8 target.accuracy=0.9
    dsgd-compare target.accuracy=0.9 compare.contenders='[{algo: gossip, algo.tau: 10}, {algo: sync}]'

Every contender is tuned by validation samples, measured on several seeds, and compared by its time to the target.
Any override of dsgd-run; compare.KEY=VALUE as conf/compare.yaml explains. Repeat the command to resume."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit status, see `command_status`."""

    def work(interruption: Interruption) -> None:
        typed = parser().parse_args(argv)
        if not typed.overrides:
            raise Usage(f"{EXAMPLES}\ndsgd-compare: contenders must be given, got none; --help says more")
        if typed.html is not None:
            check_file(Path(typed.html), "--html")
        if typed.script is not None:
            check_file(Path(typed.script), "--script")
        look = Look(typed.width, log=log_axes(typed.log), captions=not typed.no_caption)
        with (
            sharing({}),  # the data of a user's function are loaded, and their cost reported, once
            compare(typed.overrides, Path(typed.folder), interruption, typed.config_dir) as result,
        ):
            from dsgd.comparison.comparison_result import report, winner  # draws: not before there is a result

            report(result, look, typed.html)
            show_use(winner(result), typed.script)

    return command_status("dsgd-compare", work)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    description = "Tune each contender, measure it on several seeds, and tell which reaches the target first."
    command_line = command_parser("dsgd-compare", description, EXAMPLES)
    command_line.add_argument(
        "--folder", default="comparison", metavar="DIR", help="folder of the comparison (default: %(default)s)"
    )
    command_line.add_argument("--config-dir", metavar="DIR", help="your own configuration files")
    command_line.add_argument(
        "--width", choices=tuple(WIDTHS), default="wide", help="width of the figure (default: %(default)s)"
    )
    command_line.add_argument("--log", metavar="AXES", help=LOG_HELP)
    command_line.add_argument("--no-caption", action="store_true", help=CAPTION_HELP)
    command_line.add_argument("--html", metavar="FILE", help="also write a page for a browser")
    command_line.add_argument(
        "--script", metavar="FILE", help="write a training script for torchrun that uses the winner"
    )
    command_line.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    return command_line


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
    check_quotes(overrides)
    settings, contender_overrides = [], []
    for text in open_mappings(overrides):
        (settings if key_of(text).partition(".")[0] in ("compare", "slurm") else contender_overrides).append(text)
    config_dir = str(Path(config_dir).resolve()) if config_dir else None
    options = compare_options([word for word in settings if not _is_of_slurm(word)], config_dir)
    of_slurm = [word for word in settings if _is_of_slurm(word)]
    on_slurm = options.on == "slurm"
    if of_slurm and not on_slurm:
        raise ConfigError(f"{of_slurm[0].partition('=')[0]} needs compare.on=slurm, got compare.on={options.on}")

    composer = Composer(ConfigTree(config_dir), options)
    entries = composer.entries(contender_overrides)
    with ends_are_errors():
        _check(entries, composer, options)
    tally = Tally(part)
    runner: Runner = (
        SlurmRunner(folder, config_dir, of_slurm)
        if on_slurm
        else LocalRunner(folder, config_dir, interruption, tally, at_once)
    )
    interruption.check()
    _check_folder(folder, contender_overrides, options)
    with folder_lock(folder, "--folder"):
        _claim(folder, contender_overrides, options)
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


def compare_options(overrides: Sequence[str], config_dir: str | None = None) -> CompareOptions:
    """Build the options of a comparison from `compare.KEY=VALUE`. Raises ConfigError."""
    values = options_of(CompareOptions, "compare", overrides, config_dir, "compare")
    if values["crossing"] is not None:  # whose unit the bracket has
        with key_prefix(None):
            values["bracket"] = without_units(values["bracket"], str(values["crossing"]))
    return build(CompareOptions, values, "compare")


def _is_of_slurm(word: str) -> bool:
    return word.lstrip("+").startswith("slurm")


def _check(entries: Sequence[Entry], composer: Composer, options: CompareOptions) -> None:
    """Check one run of every kind, before the first one begins. Raises ConfigError."""
    models: KnownModels = []
    composer.check_conditions(entries, list(options.whatif or {}))
    if options.verdict != "time":
        check_target(f"compare.verdict={options.verdict}", entries)
    others = [{}, *cells(options.whatif)]
    if (bracket := options.search) is not None:
        check_crossing(entries)
        composer.check_conditions(entries, [bracket.key], "compare.crossing")
        others += [{bracket.key: value} for value in (bracket.low, bracket.high)]
    for entry in entries:
        values = middle(entry.axes)
        jobs = [composer.measuring(entry, values, *composer.conditions(cell))[0] for cell in others]
        if entry.axes:
            jobs += composer.tuning(entry, [values], None)[values][:1]
        for job in jobs:
            plan = plan_run(job.values, job.overrides)
            if bracket is not None:
                check_engine(bracket, plan.engine)
            check_with_torch(plan, options.on == "here", models)


def _check_folder(folder: Path, overrides: Sequence[str], options: CompareOptions) -> None:
    """Raise ConfigError if a folder holds anything but this comparison, or cannot be written."""
    path, setting = folder / SETTING, _setting(overrides, options)
    if path.is_file():
        if read_bounded(path, SETTING_BYTES) != _as_text(setting).encode():
            raise ConfigError(f"--folder must be of this comparison or new, got {folder} of {_other(path, setting)}")
        check_writable(folder, "--folder")
        return
    names = os.listdir(folder) if folder.is_dir() else ["file"] if folder.exists() else []
    if set(names) - {COMMAND_LOCK}:  # which another command takes, or a killed one has left
        raise ConfigError(f"--folder must be of this comparison or new, got {folder}, which holds something else")
    check_writable(folder, "--folder")


def _claim(folder: Path, overrides: Sequence[str], options: CompareOptions) -> None:
    """Note in a folder, which this command has locked, which comparison it holds. Raises ConfigError."""
    _check_folder(folder, overrides, options)  # another command may have been there since
    if not (folder / SETTING).is_file():
        write_atomically(folder / SETTING, _as_text(_setting(overrides, options)).encode())


def _setting(overrides: Sequence[str], options: CompareOptions) -> dict[str, Any]:
    """Return the settings that identify a comparison."""
    kept = {key: value for key, value in asdict(options).items() if key not in FREE_TO_CHANGE}
    return {"overrides": sorted(overrides), "compare": kept}


def _as_text(setting: Mapping[str, Any]) -> str:
    return json.dumps(setting, indent=1, sort_keys=True) + "\n"


def _other(path: Path, setting: Mapping[str, Any]) -> str:
    """Return the difference of another comparison in the folder from this one."""
    try:
        before = json_object(read_bounded(path, SETTING_BYTES)) or {}
        differences = [text for text in before["overrides"] if text not in setting["overrides"]]
        options = {key: value for key, value in before["compare"].items() if value != setting["compare"].get(key)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not of a comparison: {error!r}") from error
    differences += [f"compare.{key}={shown(value)}" for key, value in options.items()]
    return f"another one, with {' '.join(differences)}" if differences else "another one, with fewer overrides"


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


if __name__ == "__main__":
    sys.exit(main())
