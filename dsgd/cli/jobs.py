"""Start what a checked command line asks for: a single run, the jobs of a sweep here, or Hydra's launcher.

Imports Hydra where it is Hydra that starts them.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dsgd.cli.arguments import one_line
from dsgd.cli.beside import EXIT_CONFIG
from dsgd.cli.checked import SWEEP_FOLDER, Checked, Multirun, disable_logs
from dsgd.cli.folders import owned, remove_empty
from dsgd.cli.local_sweep import LocalSweep, kind_of_job, with_threads
from dsgd.engines.early_imports import import_engines
from dsgd.engines.execute import execute, join_launch
from dsgd.host.signals import Interrupted, Interruption
from dsgd.host.stop import EXIT_INTERRUPTED
from dsgd.record.checkpoint_file import NAME
from dsgd.record.reader import read_status
from dsgd.runner.children import told_by_child
from dsgd.runner.configuration import LoadedData
from dsgd.runner.plan import Plan, plan_run, with_wandb_group
from dsgd.runner.resume import command, contents, sweep_command
from dsgd.runner.values import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

EXIT_FAILED = 1


def run_jobs(checked: Checked, arguments: Sequence[str], interruption: Interruption) -> int:
    """Have every job of a command line started, by Hydra where it does more than that. Returns the exit status.

    Raises ConfigError if another command works in the folder of the sweep."""
    whole = checked.sweep_folder
    with nullcontext() if whole is None else owned(whole, SWEEP_FOLDER):
        return _run_jobs(checked, arguments, interruption)


def _run_jobs(checked: Checked, arguments: Sequence[str], interruption: Interruption) -> int:
    given = [*arguments, *checked.overrides]
    sys.argv = [sys.argv[0], *given]  # hydra.main reads it, and records have it
    outcome: dict[Path, str] = {}  # the status of each run by its folder
    kinds = [plan and kind_of_job(plan.config) for plan in checked.plans]
    sweep = LocalSweep(checked.labels, checked.at_once, outcome, kinds) if checked.labels else None

    def task(config: DictConfig) -> None:
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode

        job = HydraConfig.get()
        folder = Path(job.runtime.output_dir)
        if sweep is not None:
            _start_job(sweep, job.job.num, checked, folder, Path(job.sweep.dir).name, interruption)
            if job.job.num == len(checked.plans) - 1:
                _finish(sweep, interruption)
        elif job.mode is RunMode.MULTIRUN:
            outcome[folder] = _run_job_of_launcher(config, checked, folder, interruption)
            if outcome[folder] == "failed":  # in the launcher's process, whose exit status nobody sees
                raise RuntimeError(f"the run in {folder} failed")
        else:
            outcome[folder] = _run_single(checked, folder, interruption)

    elsewhere = not checked.plans  # what Hydra starts may wait for long
    try:
        with LoadedData().shared(), sweep or (interruption.armed() if elsewhere else nullcontext()):
            if sweep is not None and checked.multirun is not None:
                _start_jobs(sweep, checked, checked.multirun, interruption)
            elif not checked.needs_hydra:
                (folder,) = (Path(os.path.abspath(folder)) for folder in checked.folders)
                outcome[folder] = _run_without_hydra(checked, folder, interruption)
            else:
                import hydra

                from dsgd.cli.compose import CONFIG_MODULE, CONFIG_NAME, VERSION_BASE

                main = hydra.main(f"pkg://{CONFIG_MODULE}", config_name=CONFIG_NAME, version_base=VERSION_BASE)
                main(task)()
    finally:
        interruption.end()
        if outcome and (checked.joined is None or checked.joined.rank == 0):
            show({folder: outcome[folder] for folder in [*checked.folders, *outcome] if folder in outcome})
            if sweep is None:
                show_commands(outcome)
            else:
                sweep.show_unfinished(sweep_command(given))
    if "interrupted" in outcome.values():
        return EXIT_INTERRUPTED
    return EXIT_FAILED if "failed" in outcome.values() else 0


def _run_without_hydra(checked: Checked, folder: Path, interruption: Interruption) -> str:
    """Run the only job of a command, to which an exception is what it would be to Hydra. Returns its status."""
    disable_logs()
    try:
        return _run_single(checked, folder, interruption)
    except Exception:  # also a ValueError, which would otherwise be taken for one of the configuration
        traceback.print_exc()
        sys.exit(EXIT_FAILED)


def _run_single(checked: Checked, folder: Path, interruption: Interruption) -> str:
    """Run the only job of a command with its record in `folder`. Returns the status of the run."""
    (plan,) = checked.plans
    assert plan is not None
    import_engines([plan.engine])
    try:
        with interruption.armed():
            return execute(plan, folder, checked.joined or join_launch(plan, folder), interruption.end)
    except ConfigError as error:  # Hydra would print where it was raised
        _refuse(error, folder, checked)
    except KeyboardInterrupt:  # there may be nothing to keep
        remove_empty(folder, checked.folders.get(folder, folder))
        raise


def _start_jobs(sweep: LocalSweep, checked: Checked, multirun: Multirun, interruption: Interruption) -> None:
    """Start every job of a sweep on this machine."""
    multirun.begin()
    folders = list(checked.folders)
    for number in sweep.in_turn(range(len(folders))):
        _start_job(sweep, number, checked, folders[number], multirun.folder.name, interruption)
    _finish(sweep, interruption)


def _start_job(
    sweep: LocalSweep, number: int, checked: Checked, folder: Path, group: str, interruption: Interruption
) -> None:
    """Start a job of a sweep on this machine, or take in that it has come to its end before.

    group: of all its runs, for wandb."""
    plan = checked.plans[number]
    if plan is None:
        sweep.skip(folder, read_status(folder) or "failed")
    else:
        plan = replace(plan, logged=False)  # the sweep shows how far it has come
        try:
            sweep.start(number, folder, _job(plan, checked, folder, group, interruption))
        except KeyboardInterrupt:  # Hydra may have made a folder for it
            remove_empty(folder, checked.folders.get(folder, folder))
            raise


def _finish(sweep: LocalSweep, interruption: Interruption) -> None:
    """Wait for the last jobs of a sweep."""
    sweep.finish()
    interruption.end()  # a signal from here on comes too late


def _run_job_of_launcher(config: DictConfig, checked: Checked, folder: Path, interruption: Interruption) -> str:
    """Run a job of a sweep in a process of another launcher's, or one that a sweeper has found. Returns its status."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig

    from dsgd.cli.compose import plain

    job = HydraConfig.get()
    choices = {"hydra": {"runtime": {"choices": job.runtime.choices}}}
    try:
        plan = plan_run(plain(DictConfig({**config, **choices})), job.overrides.task)
    except ConfigError as error:
        _refuse(error, folder, checked)
    child = told_by_child(_job(plan, checked, folder, Path(job.sweep.dir).name, interruption))
    interruption.asked.extend(child.signals)
    if child.status == EXIT_CONFIG:
        sys.exit(EXIT_CONFIG)
    if child.status == EXIT_INTERRUPTED or child.signals:
        raise Interrupted  # ends the sweep as well
    return child.text or "failed"


def _job(plan: Plan, checked: Checked, folder: Path, group: str, interruption: Interruption) -> Callable[[], str]:
    """Return what the process of a sweep's job does. Its result is the status of the run."""
    import_engines([plan.engine])  # each job would take more than a second to do it for itself
    plan.config.load()
    plan = with_threads(with_wandb_group(plan, group))

    def run() -> str:
        try:
            with interruption.armed():
                return execute(plan, folder, join_launch(plan, folder), interruption.end)
        except ConfigError as error:
            _refuse(error, folder, checked)
        except KeyboardInterrupt:  # there may be nothing to keep
            remove_empty(folder, checked.folders.get(folder, folder))
            raise

    return run


def _refuse(error: ConfigError, folder: Path, checked: Checked) -> NoReturn:
    """Print what is wrong with a configuration, take the folder away that Hydra has made, and exit."""
    remove_empty(folder, checked.folders.get(folder, folder))
    print(one_line(error), file=sys.stderr)
    sys.exit(EXIT_CONFIG)


def show(outcome: Mapping[Path, str]) -> None:
    """Print the table of the runs in these folders, and where their records are."""
    from rich.console import Console

    from dsgd.record.reader import find_runs
    from dsgd.report.table import summary_table

    recorded = [folder for folder in outcome if contents(folder) != "nothing"]  # a disk may have been full before
    if recorded:
        summary_table(find_runs(recorded)).print(Console(width=None if sys.stdout.isatty() else 160))
    for folder, status in outcome.items():
        if folder in recorded:
            print(f"record: {folder}")
        elif status == "failed":
            print(f"failed, without a record: {folder}")


def show_commands(outcome: Mapping[Path, str]) -> None:
    """Print how to resume those of these runs that have a checkpoint."""
    for folder, status in outcome.items():
        if status in ("interrupted", "failed") and (folder / NAME).is_file():
            print(f"{status}; resume with: {command(folder, ours=True)}")
