"""The runs of a command line of dsgd-run: all are checked before the first one starts, a single one here, those of a
sweep in processes of their own."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import traceback
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from omegaconf import OmegaConf

from dsgd.cli.arguments import RUN_FOLDER, SWEEP_FOLDER, one_line
from dsgd.cli.compose import ConfigTree, Job
from dsgd.cli.folders import check_writable, existing_ancestor, new_folder, owned, refuse_links, remove_empty
from dsgd.cli.local_sweep import LocalSweep, label_jobs
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
from dsgd.runner.gradient_time import with_shared_times
from dsgd.runner.plan import KnownModels, Plan, check_with_torch, plan_run, with_wandb_group
from dsgd.runner.resume import (
    NothingToDo,
    checkpoint_of,
    command,
    contents,
    has_configuration,
    is_automatic,
    quoted,
    sweep_command,
    typed,
    unfinished,
)
from dsgd.runner.values import CHOSEN, ConfigError, ends_are_errors


def check(tree: ConfigTree, options: Namespace, interruption: Interruption) -> list[Job] | None:
    """Return the runs of a command line with their plans; None, after a line, if there is nothing to do. Raises
    ConfigError and, after a signal, KeyboardInterrupt."""
    key = SWEEP_FOLDER if options.multirun else RUN_FOLDER
    given = any(text.startswith(f"{key}=") for text in options.overrides)
    overrides = options.overrides
    if not options.multirun:
        where = legible(os.environ)
        if where is not None and where.step is not None and not given:  # found when SLURM starts the job again
            overrides = [f"{key}=outputs/{where.step}_${{hydra.runtime.choices.algo}}_${{nodes}}", *overrides]
        if any("resume=" in text for text in overrides):
            overrides = [*_choices_to_go_on_with(tree, overrides), *overrides]
    jobs = tree.jobs(overrides, options.multirun, interruption.check)
    timed = jobs[0].timed and not given  # the folder may be of another command that begins at the same time
    with interruption.armed(), ends_are_errors():
        try:
            if options.multirun:
                _check_sweep(jobs, timed)
            else:
                _check_run(jobs[0], given, timed)
        except NothingToDo as line:
            interruption.end()
            where = legible(os.environ)
            if where is None or where.rank == 0:
                print(line, file=sys.stderr)
            return None
    return jobs


def _choices_to_go_on_with(tree: ConfigTree, overrides: Sequence[str]) -> list[str]:
    """Return the choice of each group whose options are given beside resume=PATH, as that run has it: the option may be
    one that the default choice lacks. Also the options that such a choice cannot do without. Of code that only the
    checkpoint names these are null, which is refused where the run is planned."""
    given = {override.key_or_group: override for override in tree.parse(overrides)}
    groups = {key.partition(".")[0] for key in given if "." in key} - given.keys()
    path = given["resume"].value() if "resume" in given else None  # of another key, or of a value with this text
    if not isinstance(path, str) or is_automatic(path):
        return []
    try:
        config = checkpoint_of(path, extended=True).header["config"]
    except ConfigError:  # raised again where the run is planned
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


def _check_run(job: Job, given: bool, timed: bool) -> None:
    """Check a single run, begun or gone on with, and set its plan and folder. Raises ConfigError and NothingToDo.

    given: its folder is. timed: the folder has the time in its name."""
    values, folder, in_place = job.values, job.folder.absolute(), False
    if is_automatic(values.get("resume")):
        in_place = not timed  # what is there without a checkpoint is begun again
        values["resume"] = unfinished(folder, values) if in_place else None
    plan = _planned(job, folder, in_place)
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
            raise _used(folder, RUN_FOLDER, job.folder)
        plan = replace(plan, contents=contents(folder))
        check_writable(folder, RUN_FOLDER)
    job.plan, job.folder = plan, folder


def _check_sweep(jobs: Sequence[Job], timed: bool) -> None:
    """Check every job of a sweep before the first one starts, and set its plan and folder. Raises ConfigError.

    timed: the folder of the sweep has the time in its name."""
    models: KnownModels = []
    folders = set[Path]()
    for job in jobs:
        folder, resume = job.folder.absolute(), job.values.get("resume")
        automatic = is_automatic(resume) and not timed
        if resume is not None and not is_automatic(resume):
            raise ConfigError(f"resume must be auto in a sweep, got {resume}")
        if is_automatic(resume) and timed:
            job.values["resume"] = None  # there is nothing in a new folder
        job.plan = plan_job(job, folder, automatic)
        if job.plan is not None:
            check_with_torch(job.plan, True, models)
            if job.plan.engine != "sim" and (where := launch(os.environ)).kind != "local":
                started = f"got --multirun in {where.nodes} processes"
                raise ConfigError(f"a sweep must be started outside of {where.kind}, {started}")
            if not automatic and not timed and os.path.exists(folder / METRICS):
                same = has_configuration(folder, job.values)
                raise _used(folder, SWEEP_FOLDER, job.folder, "; resume=auto makes the missing runs" if same else "")
            job.plan = replace(job.plan, contents="nothing" if timed else contents(folder))
        if folder in folders:
            raise ConfigError(f"hydra.sweep.subdir must give every job a folder of its own, got {folder.name} twice")
        folders.add(folder)
        job.folder, job.top, job.standing = folder, job.top.absolute(), existing_ancestor(folder)
    for job in jobs:
        check_writable(job.folder, SWEEP_FOLDER)
        refuse_links(job.top, job.folder.relative_to(job.top), SWEEP_FOLDER)
    plans = with_shared_times([job.plan for job in jobs], [(job.values, job.folder) for job in jobs])
    tops = {job.top: job.top for job in jobs}
    if timed:
        tops = {top: new_folder(top, SWEEP_FOLDER) for top in tops}
    reasons = set[str]()  # for which an engine was chosen: the first job that has one says it
    for job, plan in zip(jobs, plans, strict=True):
        job.folder, job.top = tops[job.top] / job.folder.relative_to(job.top), tops[job.top]
        if plan is not None:
            job.plan = with_wandb_group(replace(plan, why="") if plan.why in reasons else plan, job.top.name)
            reasons.add(plan.why)
    label_jobs(jobs)


def plan_job(job: Job, folder: Path, automatic: bool) -> Plan | None:
    """Return the plan of a sweep's job; None if its run has ended. automatic: resume the run in the folder."""
    if not automatic:
        return plan_run(job.values, job.overrides)
    try:
        job.values["resume"] = unfinished(folder, job.values)
        return _in_its_own_folder(_planned(job, folder, automatic))
    except NothingToDo:
        return None


def _planned(job: Job, folder: Path, automatic: bool) -> Plan:
    """Return the plan of a run. automatic: to resume the one in the folder, if any. Raises ConfigError, and NothingToDo
    where that has just come to its end."""
    try:
        return plan_run(job.values, job.overrides)
    except ConfigError:
        if automatic:
            unfinished(folder, job.values)
        raise


def _in_its_own_folder(plan: Plan) -> Plan:
    """Return the plan of a run that goes on where its record is: it is one run, however often it was interrupted."""
    return replace(plan, config=replace(plan.config, values={**plan.config.values, "resume": None}))


def _way_on(folder: Path) -> str:
    """Say how to resume what a folder holds of a run, if that is possible."""
    state, again = contents(folder), command(folder)
    if state == "checkpoint":
        return f"; {again} resumes that run"
    if state == "remains":
        return "; resume=auto begins it again"
    if read_status(folder) == "completed" and (folder / NAME).is_file():
        return f"; that run is completed: {again} with a larger budget resumes from its checkpoint"
    return f"; that run is {read_status(folder)}"


def _used(folder: Path, key: str, given: Path, way: str | None = None) -> ConfigError:
    """Return the error for a folder that holds a record. key: that names it, as `given`. way: to resume it; None: as it
    is of a single run."""
    under_way = is_in_use(folder)
    way = _way_on(folder) if way is None else way
    if under_way or is_in_use(folder):  # it may have ended, or begun, while we looked
        return ConfigError(f"{key} must not be in use by another run, got {given}")
    return ConfigError(f"{key} must not hold another run's record, got {given}{way}")


def run_jobs(jobs: Sequence[Job], arguments: Sequence[str], multirun: bool, interruption: Interruption) -> int:
    """Start every run of a command line. Returns the exit status. arguments: of the command line, as records have it
    with the folder."""
    logging.getLogger().setLevel(logging.ERROR)  # of the libraries that a run uses
    line, key = list(arguments), SWEEP_FOLDER if multirun else RUN_FOLDER
    if not any(text.startswith(f"{key}=") for text in line):
        line.append(f"{key}={typed(jobs[0].top) if multirun else quoted(jobs[0].folder)}")
    sys.argv = [sys.argv[0], *line]
    outcome: dict[Path, str] = {}  # the status of each run by its folder
    sweep: LocalSweep | None = None
    try:
        with ExitStack() as stack:
            if multirun:
                for folder, standing in {job.top: job.standing for job in reversed(jobs)}.items():
                    stack.callback(remove_empty, folder, standing or folder)
                    stack.enter_context(owned(folder, SWEEP_FOLDER))
                sweep = LocalSweep(jobs, jobs[0].at_once, outcome, interruption)
                sweep.run(interruption.end)
            else:
                (job,) = jobs
                assert job.plan is not None
                job.folder = Path(os.path.abspath(job.folder))
                import_engines([job.plan.engine])
                try:
                    with interruption.armed():
                        outcome[job.folder] = execute(job.plan, job.folder, job.joined, interruption.end)
                except (ConfigError, KeyboardInterrupt):  # there may be nothing to keep
                    job.remove_empty()
                    raise
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


def show(outcome: Mapping[Path, str]) -> None:
    """Print the table of the runs in these folders, and where their records are."""
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


def show_commands(outcome: Mapping[Path, str]) -> None:
    """Print how to resume those of these runs that have a checkpoint."""
    for folder, status in outcome.items():
        if status in ("interrupted", "failed") and (folder / NAME).is_file():
            print(f"{status}; resume with: {command(folder, ours=True)}")
