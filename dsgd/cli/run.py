"""dsgd-run: check the configuration, run the experiment, keep its record."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from dsgd.cli.arguments import Parser
from dsgd.cli.compose import CONFIG_MODULE, CONFIG_NAME, VERSION_BASE, ConfigTree, HydraJob, one_line, opened, plain
from dsgd.cli.folders import check_writable, existing_ancestor, remove_empty
from dsgd.host.fork import EXIT_INTERRUPTED
from dsgd.host.launcher import launch
from dsgd.host.signals import STOP_SIGNALS, Interruption
from dsgd.record.checkpoint import NAME
from dsgd.record.writer import METRICS
from dsgd.run.child import told_by_child
from dsgd.run.execute import execute, join_launch
from dsgd.run.feasible import check_with_torch
from dsgd.run.plan import Plan, plan_run, with_wandb_group
from dsgd.run.resume import NothingToDo, command, contents, is_automatic, quoted, unfinished
from dsgd.run.values import ConfigError

if TYPE_CHECKING:
    from dsgd.run.meeting import Joined

EXIT_FAILED, EXIT_CONFIG = 1, 2
# Imported before the jobs of a sweep are forked: each would take more than a second to import it for itself.
PRELOADED = ("dsgd.run.distributed", "dsgd.run.simulated")


@dataclass(frozen=True)
class Checked:
    """A command line that was checked before Hydra acts on it.

    plans: of its jobs, by their number, as far as they run in this process. overrides: what Hydra is given besides.
    folders: for each run's folder the one above it that existed already. joined: with the processes of a launcher."""

    plans: Sequence[Plan] = ()
    overrides: Sequence[str] = ()
    folders: Mapping[Path, Path] = field(default_factory=dict)
    joined: Joined | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 (also for a diverged run, which is a result), 1 for a run that failed, 2 for a bad
    configuration, 130 where one of STOP_SIGNALS has ended it early.

    Raises SystemExit where Hydra ends the process itself: with 0 after --help, with 1 after an exception."""
    as_called = sys.argv
    arguments = opened(as_called[1:] if argv is None else argv)
    interruption = Interruption()
    handlers = {number: signal.signal(number, interruption) for number in STOP_SIGNALS}
    try:
        return _run(arguments, interruption)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        interruption.end()
        sys.argv = as_called
        for number, handler in handlers.items():
            # as a command of its own this process ends now, and signals must not change its exit status
            signal.signal(number, signal.SIG_IGN if argv is None else handler)


def _run(arguments: list[str], interruption: Interruption) -> int:
    """Check a command line and let Hydra act on it. Returns the exit status."""
    try:
        checked = check(arguments)
        sys.argv = [sys.argv[0], *arguments, *checked.overrides]  # hydra.main reads it
        return _run_hydra(checked, interruption)
    except NothingToDo as line:
        interruption.end()
        if launch(os.environ).rank == 0:
            print(line, file=sys.stderr)
        return 0
    except ValueError as error:
        print(one_line(error), file=sys.stderr)
        return EXIT_CONFIG


def _run_hydra(checked: Checked, interruption: Interruption) -> int:
    """Let Hydra start every job. Returns the exit status."""
    outcome: dict[Path, str] = {}  # the status of each run by its folder

    def task(config: DictConfig) -> None:
        folder = Path(HydraConfig.get().runtime.output_dir)
        outcome[folder] = run_job(config, checked, folder, interruption)
        asked = outcome[folder] == "interrupted" or (interruption.asked and not interruption.over)
        if asked and HydraConfig.get().mode is RunMode.MULTIRUN:
            raise KeyboardInterrupt  # ends the sweep as well
        if outcome[folder] == "failed" and not checked.plans:  # in a launcher's process, whose exit status nobody sees
            raise RuntimeError(f"the run in {folder} failed")

    try:
        hydra.main(config_path=f"pkg://{CONFIG_MODULE}", config_name=CONFIG_NAME, version_base=VERSION_BASE)(task)()
    finally:
        interruption.end()
        if outcome and (checked.joined is None or checked.joined.rank == 0):
            show(outcome)
    if "failed" in outcome.values():
        return EXIT_FAILED
    return EXIT_INTERRUPTED if "interrupted" in outcome.values() else 0


def run_job(config: DictConfig, checked: Checked, folder: Path, interruption: Interruption) -> str:
    """Run one job of Hydra's with its record in `folder`. Returns the status of the run.

    Each job of a sweep is a process of its own, which inherits no threads and no CUDA from the job before it. A signal
    after the run, or after the last one of a sweep, changes nothing; one in the midst of a sweep is noted."""
    job = HydraConfig.get()
    sweep = job.mode is RunMode.MULTIRUN
    try:
        if checked.plans:
            plan = checked.plans[job.job.num if sweep else 0]
        else:  # on another machine, or found by a sweeper
            choices = {"hydra": {"runtime": {"choices": job.runtime.choices}}}
            plan = plan_run(plain(DictConfig({**config, **choices})), job.overrides.task)
        if not sweep:
            return execute(plan, folder, checked.joined or join_launch(plan, folder), interruption.end)
    except ConfigError as error:  # Hydra would print where it was raised
        _refuse(error, folder, checked)
    except KeyboardInterrupt:  # there may be nothing to keep
        remove_empty(folder, checked.folders.get(folder, folder))
        raise
    plan = with_wandb_group(plan, Path(job.sweep.dir).name)
    for module in PRELOADED:
        importlib.import_module(module)

    def run() -> str:
        try:
            return execute(plan, folder, join_launch(plan, folder), interruption.end)
        except ConfigError as error:
            _refuse(error, folder, checked)

    is_last = job.job.num == len(checked.plans) - 1
    told = told_by_child(run, interruption.end if is_last else lambda: None)
    interruption.asked.extend(told.signals)
    if told.status == EXIT_CONFIG:
        sys.exit(EXIT_CONFIG)
    return "interrupted" if told.status == EXIT_INTERRUPTED else told.text or "failed"


def _refuse(error: ConfigError, folder: Path, checked: Checked) -> NoReturn:
    """Print what is wrong with a configuration, take the folder away that Hydra has made, and exit."""
    remove_empty(folder, checked.folders.get(folder, folder))
    print(one_line(error), file=sys.stderr)
    sys.exit(EXIT_CONFIG)


def show(outcome: Mapping[Path, str]) -> None:
    """Print the table of the runs in these folders, where their records are, and how to go on with interrupted ones."""
    from rich.console import Console

    from dsgd.record.reader import find_runs
    from dsgd.report.table import summary_table

    recorded = [folder for folder in outcome if contents(folder) != "nothing"]  # a disk may have been full before
    if recorded:
        summary_table(find_runs(recorded)).print(Console(width=None if sys.stdout.isatty() else 160))
    for folder, status in outcome.items():
        print(f"record: {folder}")
        if status in ("interrupted", "failed") and (folder / NAME).is_file():
            print(f"{status}; go on with: {command(folder)}")


def check(arguments: Sequence[str]) -> Checked:
    """Check everything that Hydra is about to do, before it does anything. Raises ConfigError."""
    options = _parser().parse_args(arguments)
    if options.hydra_help or options.version or options.shell_completion or options.experimental_rerun:
        return Checked()
    if options.config_path is not None:
        raise ConfigError(f"--config-path must not be given (--config-dir adds a folder), got {options.config_path}")
    if options.multirun + options.run + (options.cfg is not None) + (options.info is not None) > 1:
        raise ConfigError("Only one of --run, --multirun, --cfg and --info can be specified")
    tree = ConfigTree(options.config_dir, options.config_name or CONFIG_NAME)
    if options.help or options.cfg or options.info:
        tree.load(options.overrides)
        return Checked()
    if not options.multirun:
        return check_run(tree, options.overrides)
    return check_sweep(tree, options.overrides)


def _parser() -> argparse.ArgumentParser:
    """Return a parser of Hydra's flags, whose errors are one line."""
    parser = Parser(prog="dsgd-run", add_help=False)
    parser.add_argument("overrides", nargs="*")
    for names in (("--help", "-h"), ("--hydra-help",), ("--version",), ("--resolve",), ("--run", "-r")):
        parser.add_argument(*names, action="store_true")
    for names in (("--multirun", "-m"), ("--shell-completion", "-sc")):
        parser.add_argument(*names, action="store_true")
    parser.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    infos = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
    parser.add_argument("--info", "-i", nargs="?", const="all", choices=infos)
    for names in (("--package", "-p"), ("--config-path", "-cp"), ("--config-name", "-cn"), ("--config-dir", "-cd")):
        parser.add_argument(*names)
    parser.add_argument("--experimental-rerun")
    return parser


def check_run(tree: ConfigTree, overrides: Sequence[str]) -> Checked:
    """Check a single run: begun, or gone on with. Raises ConfigError and NothingToDo."""
    key = "hydra.run.dir"
    given = any(text.startswith(f"{key}=") for text in overrides)
    step = launch(os.environ).step
    if not given and step is not None:  # its record is found again when SLURM starts the job again
        overrides = [*overrides, f"{key}=outputs/{step}_${{hydra.runtime.choices.algo}}_${{nodes}}"]
    jobs = tree.jobs(overrides, multirun=False)
    if jobs.swept:  # hydra.mode=MULTIRUN
        return check_sweep(tree, overrides)
    (job,) = jobs.runs
    values, folder, own = job.values, job.folder.absolute(), False
    if is_automatic(values["resume"]):
        own = True  # what is there without a checkpoint is begun again
        values["resume"] = unfinished(folder, values)
    plan = plan_run(values, job.overrides)
    if plan.checkpoint is not None:
        before = plan.checkpoint.path.parent.resolve()
        folder = folder if given else before
        own = folder.resolve() == before
        if own:  # it is one run, however often it was interrupted
            config = replace(plan.config, values={**plan.config.values, "resume": None})
            plan = replace(plan, config=config)
    check_with_torch(plan, jobs.here, [])
    joined = join_launch(plan, folder)
    if joined is not None and joined.rank > 0:
        folder = Path(joined.meeting.folder)  # rank 0 checks it: several at once would take each other's trial away
        return Checked([plan], [f"{key}={quoted(folder)}"], {}, joined)
    if not own:
        _check_unused(folder, job, f"; resume={job.folder} goes on with that run")
    plan = replace(plan, found=contents(folder))
    check_writable(folder, key)
    added = [] if given else [f"{key}={quoted(folder)}"]
    return Checked([plan], added, {folder: existing_ancestor(folder)}, joined)


def check_sweep(tree: ConfigTree, overrides: Sequence[str]) -> Checked:
    """Check every job of a sweep before the first one starts. Raises ConfigError."""
    jobs = tree.jobs(overrides, multirun=True)
    where = launch(os.environ)
    plans: list[Plan] = []
    folders: dict[Path, Path] = {}
    models: list[tuple[object, ...]] = []
    for job in jobs.runs:
        folder = job.folder.absolute()
        if job.values["resume"] is not None:
            raise ConfigError(f"resume must be used without a sweep, got {job.values['resume']}")
        plans.append(plan_run(job.values, job.overrides))
        check_with_torch(plans[-1], jobs.here, models)
        if plans[-1].engine == "dist" and where.kind != "local":
            started = f"got --multirun in {where.nodes} processes"
            raise ConfigError(f"a sweep must be started outside of {where.kind}, {started}")
        _check_unused(folder, job)
        plans[-1] = replace(plans[-1], found=contents(folder))
        if folder in folders:
            raise ConfigError(f"hydra.sweep.subdir must give every job a folder of its own, got {folder.name} twice")
        folders[folder] = existing_ancestor(folder)
    for folder in folders:
        check_writable(folder, "hydra.sweep.dir")
    return Checked(plans if jobs.here else (), (), folders)


def _check_unused(folder: Path, job: HydraJob, hint: str = "") -> None:
    if os.path.exists(folder / METRICS):
        raise ConfigError(f"{job.folder_key} must not hold another run's record, got {job.folder}{hint}")


if __name__ == "__main__":
    sys.exit(main())
