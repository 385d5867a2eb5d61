"""Start the runs of a checked command line: a single one here, those of a sweep in processes of their own."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from dsgd.cli.arguments import one_line
from dsgd.cli.compose import RUN_FOLDER, SWEEP_FOLDER, CommandLine, Job
from dsgd.cli.folders import owned, remove_empty
from dsgd.cli.local_sweep import LocalSweep
from dsgd.engines.execute import execute, import_engines
from dsgd.host.signals import Interruption
from dsgd.host.stop import EXIT_CONFIG, EXIT_FAILED, EXIT_INTERRUPTED
from dsgd.record.checkpoint_file import NAME
from dsgd.runner.resume import command, contents, quoted, sweep_command, typed
from dsgd.runner.values import ConfigError


def run_jobs(checked: CommandLine, arguments: Sequence[str], multirun: bool, interruption: Interruption) -> int:
    """Start every run of a command line. Returns the exit status. arguments: of the command line, as records have it
    with the folder."""
    logging.getLogger().setLevel(logging.ERROR)  # of the libraries that a run uses
    jobs = checked.runs
    key, top = (SWEEP_FOLDER, typed(jobs[0].top)) if multirun else (RUN_FOLDER, quoted(jobs[0].folder))
    is_given = any(text.startswith(f"{key}=") for text in arguments)
    line = [*arguments, *([] if is_given else [f"{key}={top}"])]
    sys.argv = [sys.argv[0], *line]
    outcome: dict[Path, str] = {}  # the status of each run by its folder
    sweep: LocalSweep | None = None
    try:
        with ExitStack() as stack:
            if multirun:
                for folder, standing in {job.top: job.standing for job in reversed(jobs)}.items():
                    stack.callback(remove_empty, folder, standing or folder)
                    stack.enter_context(owned(folder, SWEEP_FOLDER))
                sweep = LocalSweep(jobs, checked.at_once, outcome, interruption)
                sweep.run(interruption.end)
            else:
                _run_single(jobs[0], outcome, interruption)
    except ConfigError as error:  # of a folder in use, or what only loading data and model can tell
        print(one_line(error), file=sys.stderr)
        return EXIT_CONFIG
    except Exception:  # of a run that failed, or of a user's code
        traceback.print_exc()
        return EXIT_FAILED
    finally:
        interruption.end()
        if outcome and (jobs[0].joined is None or jobs[0].joined.rank == 0):
            show({job.folder: outcome[job.folder] for job in jobs if job.folder in outcome})
            if sweep is None:
                show_commands(outcome)
            else:
                sweep.show_unfinished(sweep_command(line))
    if "interrupted" in outcome.values():
        return EXIT_INTERRUPTED
    return EXIT_FAILED if "failed" in outcome.values() else 0


def _run_single(job: Job, outcome: dict[Path, str], interruption: Interruption) -> None:
    """Run the only job of a command, and note the status of the run. Raises ConfigError."""
    assert job.plan is not None
    job.folder = Path(os.path.abspath(job.folder))
    import_engines([job.plan.engine])
    try:
        with interruption.armed():
            outcome[job.folder] = execute(job.plan, job.folder, job.joined, interruption.end)
    except (ConfigError, KeyboardInterrupt):  # there may be nothing to keep
        job.remove_empty()
        raise


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
