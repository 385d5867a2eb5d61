"""Check a comparison before its first run, and note in its folder which one it is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dsgd.cli.arguments import check_quotes, key_of, open_mappings
from dsgd.cli.compose import ConfigTree, options_of
from dsgd.cli.folders import check_writable
from dsgd.comparison.crossing_runs import check_crossing, check_engine, check_target
from dsgd.comparison.entries import Composer, Entry
from dsgd.comparison.options import CompareOptions
from dsgd.comparison.stages import cells
from dsgd.comparison.tuning import middle
from dsgd.record.lock import COMMAND_LOCK
from dsgd.record.safe_files import json_object, read_bounded, write_atomically
from dsgd.report.units import without_units
from dsgd.runner.plan import KnownModels, check_with_torch, plan_run
from dsgd.runner.values import ConfigError, build, ends_are_errors, key_prefix, shown

SETTING, SETTING_BYTES = "comparison.json", 2**20
# of the options, for the same comparison
FREE_TO_CHANGE = (
    "seeds", "whatif", "crossing", "bracket", "node_hour", "egress_gb", "verdict", "on", "tune_values",
)  # fmt: skip


@dataclass(frozen=True)
class Prepared:
    """Hold a comparison that was checked, before its first run.

    overrides: overrides of its contenders. of_slurm: options of the jobs."""

    options: CompareOptions
    overrides: Sequence[str]
    of_slurm: Sequence[str]
    config_dir: str | None
    composer: Composer
    entries: Sequence[Entry]

    def check_folder(self, folder: Path) -> None:
        """Raise ConfigError if a folder holds anything but this comparison, or cannot be written."""
        path, setting = folder / SETTING, _setting(self.overrides, self.options)
        if path.is_file():
            if read_bounded(path, SETTING_BYTES) != _as_text(setting).encode():
                raise ConfigError(
                    f"--folder must be of this comparison or new, got {folder} of {_other(path, setting)}"
                )
            check_writable(folder, "--folder")
            return
        names = os.listdir(folder) if folder.is_dir() else ["file"] if folder.exists() else []
        if set(names) - {COMMAND_LOCK}:  # which another command takes, or a killed one has left
            raise ConfigError(f"--folder must be of this comparison or new, got {folder}, which holds something else")
        check_writable(folder, "--folder")

    def claim(self, folder: Path) -> None:
        """Note in a folder, which this command has locked, which comparison it holds. Raises ConfigError."""
        self.check_folder(folder)  # another command may have been there since
        if not (folder / SETTING).is_file():
            write_atomically(folder / SETTING, _as_text(_setting(self.overrides, self.options)).encode())


def prepare(overrides: Sequence[str], config_dir: str | None = None) -> Prepared:
    """Check the options of a command line, and one run of every kind. Raises ConfigError."""
    check_quotes(overrides)
    settings, contender_overrides = [], []
    for text in open_mappings(overrides):
        (settings if key_of(text).partition(".")[0] in ("compare", "slurm") else contender_overrides).append(text)
    config_dir = str(Path(config_dir).resolve()) if config_dir else None
    options = compare_options([word for word in settings if not _is_of_slurm(word)], config_dir)
    of_slurm = [word for word in settings if _is_of_slurm(word)]
    if of_slurm and options.on != "slurm":
        raise ConfigError(f"{of_slurm[0].partition('=')[0]} needs compare.on=slurm, got compare.on={options.on}")
    composer = Composer(ConfigTree(config_dir), options)
    entries = composer.entries(contender_overrides)
    with ends_are_errors():
        _check(entries, composer, options)
    return Prepared(options, contender_overrides, of_slurm, config_dir, composer, entries)


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


def _setting(overrides: Sequence[str], options: CompareOptions) -> dict[str, Any]:
    """Return the settings that identify a comparison."""
    kept = {key: value for key, value in asdict(options).items() if key not in FREE_TO_CHANGE}
    if kept["ladder"] is None:  # of folders that are older than ladders
        del kept["ladder"]
    else:
        kept["seeds"] = options.seeds  # the forecast depends on them
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
