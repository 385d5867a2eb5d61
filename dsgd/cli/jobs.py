"""A single run of dsgd-run, from the command line to the table at its end; and functions shared with a sweep's jobs
(`dsgd.cli.local_sweep`)."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import traceback
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from omegaconf import OmegaConf

from dsgd.cli.arguments import RUN_FOLDER, one_line
from dsgd.cli.compose import ConfigTree, Job
from dsgd.cli.folders import check_writable, existing_ancestor, new_folder, remove_empty
from dsgd.engines.execute import execute, import_engines, join_launch
from dsgd.host.launcher import launch, legible
from dsgd.host.signals import Interruption
from dsgd.host.stop import EXIT_CONFIG, EXIT_FAILED, EXIT_INTERRUPTED
from dsgd.host.terminal import table_console
from dsgd.record.checkpoint_file import NAME
from dsgd.record.lock import is_in_use
from dsgd.record.reader import read_status
from dsgd.record.safe_text import for_terminal
from dsgd.record.writer import METRICS
from dsgd.runner.configuration import TRUSTED, code_of
from dsgd.runner.plan import Plan, check_with_torch, plan_run
from dsgd.runner.resume import (
    NothingToDo,
    checkpoint_of,
    command,
    contents,
    is_automatic,
    quoted,
    unfinished,
)
from dsgd.runner.values import CHOSEN, ConfigError, ends_are_errors

EXIT_STATUS = {"interrupted": EXIT_INTERRUPTED, "failed": EXIT_FAILED}  # by the status of a run; 0 for others


def run_single(tree: ConfigTree, options: Namespace, arguments: Sequence[str], interruption: Interruption) -> int:
    """Check the run of a command line, and make it. Returns the exit status; if that run has ended before, prints a
    line and returns 0. Raises ConfigError before anything is written and, after a signal, KeyboardInterrupt."""
    where, overrides = legible(os.environ), options.overrides
    given = any(text.startswith(f"{RUN_FOLDER}=") for text in overrides)
    if where is not None and where.step is not None and not given:  # found when SLURM starts the job again
        overrides = [f"{RUN_FOLDER}=outputs/{where.step}_${{hydra.runtime.choices.algo}}_${{nodes}}", *overrides]
    if any("resume=" in text for text in overrides):
        overrides = [*_stored_choices(tree, overrides), *overrides]
    (job,) = tree.jobs(overrides, multirun=False)
    with interruption.armed(), ends_are_errors():
        try:
            plan = _check_run(job, given)
        except NothingToDo as line:
            interruption.end()
            if where is None or where.rank == 0:
                print(line, file=sys.stderr)
            return 0
    set_command(arguments, RUN_FOLDER, quoted(job.folder))
    job.folder = Path(os.path.abspath(job.folder))
    status = ""
    try:
        import_engines([plan.engine])
        with interruption.armed():
            status = execute(plan, job.folder, job.joined, interruption.end)
    except ConfigError as error:  # a folder in use, or an error that only loading data and model shows
        job.remove_empty()
        print(one_line(error), file=sys.stderr)
        return EXIT_CONFIG
    except KeyboardInterrupt:  # the folder may be empty
        job.remove_empty()
        raise
    except Exception:  # of a run that failed, or of a user's code
        traceback.print_exc()
        return EXIT_FAILED
    finally:
        interruption.end()
        if status and (job.joined is None or job.joined.rank == 0):
            show({job.folder: status})
            if status in ("interrupted", "failed") and (job.folder / NAME).is_file():
                print(f"{status}; resume with: {command(job.folder, ours=True)}")
    return EXIT_STATUS.get(status, 0)


def _stored_choices(tree: ConfigTree, overrides: Sequence[str]) -> list[str]:
    """Return the resumed run's choice of each group with options on a command line with resume=PATH: the default choice
    may lack the option. Also returns required options of such a choice. For code that only the checkpoint names they
    are null, which planning the run refuses."""
    given = {override.key_or_group: override for override in tree.parse(overrides)}
    groups = {key.partition(".")[0] for key in given if "." in key} - given.keys()
    path = given["resume"].value() if "resume" in given else None  # of another key, or of a value with this text
    if not isinstance(path, str) or is_automatic(path):
        return []
    try:
        config = checkpoint_of(path, extended=True).header["config"]
    except ConfigError:  # raised again when the run is planned
        return []
    stored = {group: config[group] for group in CHOSEN if isinstance(config.get(group), Mapping)}
    names = {group: values.get("name") for group, values in stored.items() if group in groups}
    choices = [f"{group}={name}" for group, name in names.items() if name in tree.choices(group)]
    code = {} if TRUSTED in given and given[TRUSTED].value() is True else code_of(config)
    whole = tree.load([*choices, *overrides])
    for group, values in stored.items():
        for key in [key for key in whole[group] if OmegaConf.is_missing(whole[group], key)]:
            value = None if key in code.get(group, ()) else values.get(key, "")
            if value is None or isinstance(value, int | float):
                choices.append(f"{group}.{key}={json.dumps(value)}")
            elif isinstance(value, str) and re.fullmatch(r"[^'\\$]+", value):  # else it is asked for
                choices.append(f"{group}.{key}='{value}'")
    return choices


def _check_run(job: Job, given: bool) -> Plan:
    """Check a new or resumed single run, and set its folder. Returns its plan. Raises ConfigError and NothingToDo.

    given: True if its folder is given."""
    timed = job.timed and not given  # another command that starts at the same time may have the folder
    folder, in_place = job.folder.absolute(), False
    if is_automatic(job.values.get("resume")):
        in_place = not timed  # a run in the folder without a checkpoint starts again
        job.values["resume"] = None
    plan = plan_job(job, folder, in_place)
    if plan.checkpoint is not None:
        before = plan.checkpoint.path.parent.resolve()
        folder = folder if given else before
        in_place = folder.resolve() == before
        if in_place:
            plan = _in_its_own_folder(plan)
    check_with_torch(plan, True, [])
    job.standing = existing_ancestor(folder)
    if timed and plan.checkpoint is None and (plan.engine == "sim" or launch(os.environ).rank == 0):
        folder = new_folder(folder, RUN_FOLDER)
    try:
        job.joined = None if plan.engine == "sim" else join_launch(plan, folder)
    except BaseException:
        remove_empty(folder, job.standing)
        raise
    if job.joined is not None and job.joined.rank > 0:  # rank 0 checks it: several would take each other's trial away
        job.standing = folder = Path(job.joined.meeting.folder)
    else:
        if not in_place and os.path.exists(folder / METRICS):
            raise used(folder, RUN_FOLDER, job.folder)
        plan = replace(plan, contents=contents(folder))
        check_writable(folder, RUN_FOLDER)
    job.folder = folder
    return plan


def plan_job(job: Job, folder: Path, in_place: bool) -> Plan:
    """Return the plan of a run. in_place: it resumes the run in the folder, if there is one. Raises ConfigError, and
    NothingToDo if that run has ended, or ends just now."""
    if not in_place:
        return plan_run(job.values, job.overrides)
    job.values["resume"] = unfinished(folder, job.values)
    try:
        return _in_its_own_folder(plan_run(job.values, job.overrides))
    except ConfigError:
        unfinished(folder, job.values)
        raise


def _in_its_own_folder(plan: Plan) -> Plan:
    """Return the plan of a run that resumes in the folder of its record: it is one run."""
    return replace(plan, config=replace(plan.config, values={**plan.config.values, "resume": None}))


def _way_on(folder: Path) -> str:
    """Return a hint on resuming the run in a folder, if that is possible."""
    state, again = contents(folder), command(folder)
    if state == "checkpoint":
        return f"; {again} resumes that run"
    if state == "remains":
        return "; resume=auto begins it again"
    if read_status(folder) == "completed" and (folder / NAME).is_file():
        return f"; that run is completed: {again} with a larger budget resumes from its checkpoint"
    return f"; that run is {read_status(folder)}"


def used(folder: Path, key: str, given: Path, way: str | None = None) -> ConfigError:
    """Return the error for a folder that holds a record. key: key that names it. given: its name there. way: hint on
    resuming it; None: the hint for a single run."""
    under_way = is_in_use(folder)
    way = _way_on(folder) if way is None else way
    if under_way or is_in_use(folder):  # it may have ended, or started, during the check
        return ConfigError(f"{key} must not be in use by another run, got {given}")
    return ConfigError(f"{key} must not hold another run's record, got {given}{way}")


def set_command(arguments: Sequence[str], key: str, folder: str) -> list[str]:
    """Return the command line of these runs, with their folder if it was not typed, and set it for records.

    key: key that names the folder."""
    logging.getLogger().setLevel(logging.ERROR)  # of the libraries that a run uses
    line = list(arguments)
    if not any(text.startswith(f"{key}=") for text in line):
        line.append(f"{key}={folder}")
    sys.argv = [sys.argv[0], *line]
    return line


def show(outcome: Mapping[Path, str]) -> None:
    """Print the table of the runs in these folders, and the places of their records."""
    from dsgd.record.reader import find_runs
    from dsgd.report.table import summary_table

    recorded = [folder for folder in outcome if contents(folder) != "nothing"]  # a disk may have been full before
    if recorded:
        summary_table(find_runs(recorded)).print(table_console())
    for folder, status in outcome.items():
        if folder in recorded:
            print(for_terminal(f"record: {folder}"))
        elif status == "failed":
            print(for_terminal(f"failed, without a record: {folder}"))
