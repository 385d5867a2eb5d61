"""Everything that dsgd-run is about to do, checked before Hydra does any of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dsgd.cli.arguments import opened, parsed
from dsgd.cli.checked import MULTIRUN, RUN_FOLDER, SWEEP_FOLDER, Checked
from dsgd.cli.compose import CONFIG_NAME, ConfigTree, HydraJob, HydraJobs
from dsgd.cli.folders import check_writable, existing_ancestor, new_folder, refuse_links, remove_empty
from dsgd.cli.key_list import put_into_help
from dsgd.cli.local_sweep import jobs_at_once, labels
from dsgd.cli.multirun import multirun_of, needs_hydra
from dsgd.engines.execute import join_launch
from dsgd.host.launcher import launch, legible
from dsgd.host.signals import Interruption
from dsgd.record.checkpoint_file import NAME
from dsgd.record.lock import is_in_use
from dsgd.record.reader import read_status
from dsgd.record.writer import METRICS
from dsgd.runner.configuration import LoadedData
from dsgd.runner.feasible import KnownModels, check_with_torch
from dsgd.runner.gradient_time import with_shared_times
from dsgd.runner.plan import Plan, plan_run
from dsgd.runner.resume import (
    NothingToDo,
    checkpoint_of,
    command,
    contents,
    has_configuration,
    is_automatic,
    quoted,
    typed,
    unfinished,
)
from dsgd.runner.values import CHOSEN, ConfigError, ends_are_errors


def check(arguments: Sequence[str], interruption: Interruption) -> Checked:
    """Check everything that Hydra is about to do, before it does anything. Raises ConfigError, NothingToDo and, after a
    signal, KeyboardInterrupt."""
    options = parsed(arguments)
    if options.hydra_help or options.version or options.shell_completion or options.experimental_rerun:
        return Checked()
    if options.config_path is not None:
        raise ConfigError(f"--config-path must not be given (--config-dir adds a folder), got {options.config_path}")
    if options.multirun + options.run + (options.cfg is not None) + (options.info is not None) > 1:
        raise ConfigError("Only one of --run, --multirun, --cfg and --info can be specified")
    tree = ConfigTree(options.config_dir, options.config_name or CONFIG_NAME)
    if options.help:
        put_into_help(tree.described(options.overrides))
        return Checked()
    if options.cfg or options.info:
        tree.load(options.overrides)
        return Checked()
    overrides = options.overrides
    if not options.multirun:
        overrides = [*_run_folder(overrides), *_choices_to_go_on_with(tree, overrides), *overrides]
    jobs = tree.jobs(overrides, options.multirun, interruption.check)
    with interruption.armed(), ends_are_errors(), LoadedData().shared():
        return (_check_sweep if jobs.swept else _check_run)(jobs, options.overrides)


def _run_folder(overrides: Sequence[str]) -> list[str]:
    """Return the override of the folder of a job step's record, which is found when SLURM starts the job again."""
    where = legible(os.environ)
    step = None if where is None else where.step
    if step is None or _is_given(RUN_FOLDER, overrides):
        return []
    return [f"{RUN_FOLDER}=outputs/{step}_${{hydra.runtime.choices.algo}}_${{nodes}}"]


def _choices_to_go_on_with(tree: ConfigTree, overrides: Sequence[str]) -> list[str]:
    """Return the choice of each group whose options are given beside resume=PATH, as that run has it: the option may be
    one that the default choice lacks."""
    given = {override.key_or_group: override for override in tree.parse(opened(overrides))}
    groups = {key.partition(".")[0] for key in given if "." in key} - given.keys()
    path = given["resume"].value() if "resume" in given else None
    if not isinstance(path, str) or is_automatic(path):
        return []
    try:
        config = checkpoint_of(path, extended=True).header["config"]
    except ConfigError:  # raised again where the run is planned
        return []
    names = {group: config[group].get("name") for group in CHOSEN if group in groups and group in config}
    return [f"{group}={name}" for group, name in names.items() if name in tree.choices(group)]


def _is_given(key: str, overrides: Sequence[str]) -> bool:
    return any(text.startswith(f"{key}=") for text in overrides)


def _check_run(jobs: HydraJobs, overrides: Sequence[str]) -> Checked:
    """Check a single run: begun, or gone on with. Raises ConfigError and NothingToDo."""
    given = _is_given(RUN_FOLDER, overrides)
    timed = jobs.timed and not given  # of a run that begins at the same time
    (job,) = jobs.runs
    values, folder, in_place = job.values, job.folder.absolute(), False
    if is_automatic(values.get("resume")):
        in_place = not timed  # what is there without a checkpoint is begun again
        values["resume"] = unfinished(folder, values) if in_place else None
    plan = plan_run(values, job.overrides)
    if plan.checkpoint is not None:
        before = plan.checkpoint.path.parent.resolve()
        folder = folder if given else before
        in_place = folder.resolve() == before
        if in_place:
            plan = _in_its_own_folder(plan)
    check_with_torch(plan, jobs.here, [])
    standing = existing_ancestor(folder)
    if timed and plan.checkpoint is None and (plan.engine == "sim" or launch(os.environ).rank == 0):
        folder = new_folder(folder, RUN_FOLDER)
    try:
        joined = join_launch(plan, folder)
    except BaseException:
        remove_empty(folder, standing)
        raise
    if joined is not None and joined.rank > 0:
        folder = Path(joined.meeting.folder)  # rank 0 checks it: several at once would take each other's trial away
        return Checked([plan], overrides=[f"{RUN_FOLDER}={quoted(folder)}"], joined=joined)
    if not in_place:
        _check_unused(folder, job)
    plan = replace(plan, contents=contents(folder))
    check_writable(folder, RUN_FOLDER)
    added = [] if given else [f"{RUN_FOLDER}={quoted(folder)}"]
    asked = joined is not None or jobs.whole is None or needs_hydra(jobs.whole)
    folders = {folder: standing}
    return Checked([plan], overrides=added, folders=folders, joined=joined, needs_hydra=asked)


def _check_sweep(jobs: HydraJobs, overrides: Sequence[str]) -> Checked:
    """Check every job of a sweep before the first one starts. Raises ConfigError."""
    given = _is_given(SWEEP_FOLDER, overrides)
    timed = jobs.timed and not given  # the folder may be of a sweep that begins at the same time
    plans: list[Plan | None] = []
    folders: dict[Path, Path] = {}
    models: KnownModels = []
    for job in jobs.runs:
        folder, resume = job.folder.absolute(), job.values.get("resume")
        automatic = is_automatic(resume) and not timed
        if resume is not None and not is_automatic(resume):
            raise ConfigError(f"resume must be auto in a sweep, got {resume}")
        if is_automatic(resume) and timed:
            job.values["resume"] = None  # there is nothing in a new folder
        plan = plan_job(job, folder, automatic)
        if plan is not None:
            check_with_torch(plan, jobs.here, models)
            if plan.engine != "sim" and (where := launch(os.environ)).kind != "local":
                started = f"got --multirun in {where.nodes} processes"
                raise ConfigError(f"a sweep must be started outside of {where.kind}, {started}")
            if not automatic and not timed:
                same = has_configuration(folder, job.values)
                _check_unused(folder, job, "; resume=auto makes the missing runs" if same else "")
            plan = replace(plan, contents="nothing" if timed else contents(folder))
        plans.append(plan)
        if folder in folders:
            raise ConfigError(f"hydra.sweep.subdir must give every job a folder of its own, got {folder.name} twice")
        folders[folder] = existing_ancestor(folder)
    for folder in folders:
        check_writable(folder, SWEEP_FOLDER)
        if jobs.folder is not None and folder.is_relative_to(top := jobs.folder.absolute()):
            refuse_links(top, folder.relative_to(top), SWEEP_FOLDER)
            refuse_links(top, MULTIRUN, SWEEP_FOLDER)
    if jobs.here:
        plans = with_shared_times(plans, [(job.values, job.folder.absolute()) for job in jobs.runs])
    whole = jobs.folder
    if whole is not None and timed:
        before, whole = whole.absolute(), new_folder(whole, SWEEP_FOLDER)
        folders = {whole.absolute() / path.relative_to(before): above for path, above in folders.items()}
    # Hydra would take the time in its name anew
    added = [] if given or whole is None else [f"{SWEEP_FOLDER}={typed(whole)}"]
    locked = None if whole is None else whole.absolute()
    if not jobs.here:
        return Checked(overrides=added, folders=folders, sweep_folder=locked)
    at_once = jobs_at_once(jobs.at_once, [plan for plan in plans if plan is not None])
    multirun = None
    if jobs.whole is not None and whole is not None and not needs_hydra(jobs.whole):
        multirun = multirun_of(jobs.whole, whole, added)
    plans = _told_once(plans)
    return Checked(plans, labels(jobs.runs), at_once, added, folders, multirun=multirun, sweep_folder=locked)


def _told_once(plans: Sequence[Plan | None]) -> list[Plan | None]:
    """Return the plans of a sweep's jobs, where of those with the same choice of an engine the first one says why."""
    result: list[Plan | None] = []
    reasons: set[str] = set()
    for plan in plans:
        result.append(replace(plan, why="") if plan is not None and plan.why in reasons else plan)
        reasons.add("" if plan is None else plan.why)
    return result


def plan_job(job: HydraJob, folder: Path, automatic: bool) -> Plan | None:
    """Return the plan of a sweep's job; None if its run has ended. automatic: resume the run in the folder."""
    if not automatic:
        return plan_run(job.values, job.overrides)
    try:
        job.values["resume"] = unfinished(folder, job.values)
    except NothingToDo:
        return None
    return _in_its_own_folder(plan_run(job.values, job.overrides))


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


def _check_unused(folder: Path, job: HydraJob, way: str | None = None) -> None:
    """Raise ConfigError for a folder that holds a record. way: to resume it; None: as it is of a single run."""
    if os.path.exists(folder / METRICS):
        under_way = is_in_use(folder)
        way = _way_on(folder) if way is None else way
        if under_way or is_in_use(folder):  # it may have ended, or begun, while we looked
            raise ConfigError(f"{job.folder_key} must not be in use by another run, got {job.folder}")
        raise ConfigError(f"{job.folder_key} must not hold another run's record, got {job.folder}{way}")
