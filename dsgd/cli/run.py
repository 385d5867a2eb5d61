"""dsgd-run: check the configuration, run the experiment, keep its record."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.utils import get_args_parser  # the parser of hydra.main itself: what it takes, we must take
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from dsgd.cli.build import ConfigError, build_experiment
from dsgd.cli.compose import CONFIG_MODULE, CONFIG_NAME, VERSION_BASE, ConfigTree, check_writable, one_line, plain
from dsgd.cli.resume import checkpoint_of, quoted, resumed
from dsgd.record.writer import METRICS

EXIT_CONFIG, EXIT_INTERRUPTED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns 0 (also for a diverged run, which is a result), 2 for a bad configuration, 130 on Ctrl-C.

    Raises SystemExit where Hydra ends the process itself: with 0 after --help, with 1 after a run that failed."""
    as_called = sys.argv
    sys.argv = [as_called[0], *(as_called[1:] if argv is None else argv)]  # Hydra reads it
    try:
        return _main()
    except ValueError as error:
        print(one_line(error), file=sys.stderr)
        return EXIT_CONFIG
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        sys.argv = as_called


def _main() -> int:
    parser = get_args_parser()
    parser.error = _refuse  # in one line, like every other error, without the usage
    arguments = parser.parse_args(sys.argv[1:])
    outcome: dict[Path, str] = {}  # the status of each run by its folder

    def task(config: DictConfig) -> None:
        try:
            execute(config, outcome)
        except ConfigError as error:  # Hydra would print where it was raised
            print(one_line(error), file=sys.stderr)
            sys.exit(EXIT_CONFIG)

    check(arguments)
    try:
        hydra.main(config_path=f"pkg://{CONFIG_MODULE}", config_name=CONFIG_NAME, version_base=VERSION_BASE)(task)()
    finally:
        if outcome:
            from dsgd.cli.session import show

            show(outcome)
    return EXIT_INTERRUPTED if "interrupted" in outcome.values() else 0


def _refuse(message: str) -> NoReturn:
    raise ConfigError(message)


def check(arguments: argparse.Namespace) -> None:
    """Check what Hydra is about to do, before it does anything. Raises ConfigError."""
    if arguments.hydra_help or arguments.shell_completion or arguments.experimental_rerun:
        return
    if arguments.config_path is not None:
        raise ConfigError(f"--config-path must not be given (--config-dir adds a folder), got {arguments.config_path}")
    tree = ConfigTree(arguments.config_dir, arguments.config_name or CONFIG_NAME)
    if arguments.help or arguments.cfg or arguments.info:
        tree.load(arguments.overrides)
    else:
        sys.argv += check_jobs(tree, arguments.overrides, arguments.multirun)


def check_jobs(tree: ConfigTree, overrides: Sequence[str], multirun: bool) -> list[str]:
    """Check every job before the first one starts, leave nothing behind. Returns overrides to add."""
    jobs = tree.jobs(overrides, multirun)
    folders: dict[Path, str] = {}
    added: list[str] = []
    for job in jobs:
        values, folder = job.values, job.folder.absolute()
        before = None
        if values["resume"] is not None:
            if len(jobs) > 1:
                raise ConfigError(f"resume must be used without a sweep, got {values['resume']}")
            checkpoint, header = checkpoint_of(str(values["resume"]))
            values = resumed(values, job.overrides, header)
            before = checkpoint.parent.resolve()
            if not any(text.startswith(f"{job.folder_key}=") for text in overrides):
                folder = before
                added = [f"{job.folder_key}={quoted(folder)}"]
        choose_engine(values["engine"])
        build_experiment(values)
        if (folder / METRICS).exists() and folder.resolve() != before:
            hint = "" if multirun else f"; resume={job.folder} goes on with that run"
            raise ConfigError(f"{job.folder_key} must not hold another run's record, got {job.folder}{hint}")
        if folder in folders:
            raise ConfigError(f"hydra.sweep.subdir must give every job a folder of its own, got {folder.name} twice")
        folders[folder] = job.folder_key
    for folder, key in folders.items():
        check_writable(folder, key)
    return added


def choose_engine(engine: Mapping[str, Any]) -> str:
    """One line on which engine runs and why. Raises ConfigError inside a launcher that started several processes."""
    for variable in ("WORLD_SIZE", "SLURM_NTASKS"):
        if engine["name"] == "auto" and int(os.environ.get(variable, "1") or 1) > 1:
            raise ConfigError(
                f"engine must be sim with {variable}={os.environ[variable]}, got auto: this version has no engine of "
                "real processes, and would run the same simulation that many times"
            )
    reason = "as configured" if engine["name"] == "sim" else "this version has no other engine"
    gradients = "left out" if engine["gradients"] == "none" else "real"
    return f"engine: sim, {reason}; time is virtual, gradients are {gradients}"


def execute(config: DictConfig, outcome: dict[Path, str]) -> None:
    """One job of Hydra's: puts the status of its run into `outcome`."""
    from dsgd.cli.session import run_and_record  # imports torch

    hydra_config = HydraConfig.get()
    values = plain(DictConfig({**config, "hydra": {"runtime": {"choices": hydra_config.runtime.choices}}}))
    checkpoint = None
    if values["resume"] is not None:
        checkpoint = checkpoint_of(str(values["resume"]))
        values = resumed(values, hydra_config.overrides.task, checkpoint[1])
    print(choose_engine(values["engine"]), file=sys.stderr)
    folder = Path(hydra_config.runtime.output_dir)
    outcome[folder] = run_and_record(values, folder, checkpoint)
    if outcome[folder] == "interrupted" and hydra_config.mode is RunMode.MULTIRUN:
        raise KeyboardInterrupt  # ends the sweep as well


if __name__ == "__main__":
    sys.exit(main())
