"""The jobs of a sweep on this machine: each in its own process, several in parallel.

A process inherits no threads and no CUDA from the job before it. Outputs of jobs do not mix: a job's lines are printed
together, above the progress bar of all jobs. A line of several jobs is printed once, unless they fail.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import tempfile
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import IO

from dsgd.cli.arguments import SWEEP_FOLDER, one_line
from dsgd.cli.compose import ConfigTree, Job
from dsgd.cli.folders import check_writable, existing_ancestor, folder_lock, new_folder, refuse_links, remove_empty
from dsgd.cli.jobs import EXIT_STATUS, plan_job, set_command, show, used
from dsgd.cli.tally import LOOK_S, Tally
from dsgd.data.built_in import draw_shared
from dsgd.engines.execute import execute, import_engines
from dsgd.host.fork import Children, ChildResult
from dsgd.host.launcher import launch
from dsgd.host.resources import cores, omp_threads
from dsgd.host.signals import Interrupted, Interruption
from dsgd.host.stop import EXIT_CONFIG, EXIT_FAILED, EXIT_INTERRUPTED
from dsgd.host.terminal import print_utf8
from dsgd.record.reader import read_last_mark, read_status
from dsgd.record.writer import METRICS
from dsgd.runner.gradient_time import kind_of, with_shared_times
from dsgd.runner.placement import may_be_on_accelerator
from dsgd.runner.plan import KnownModels, Plan, check_with_torch, with_wandb_group
from dsgd.runner.resume import (
    ENDED,
    NothingToDo,
    contents,
    has_configuration,
    is_automatic,
    sweep_command,
    typed,
)
from dsgd.runner.values import ConfigError, ends_are_errors


def run_sweep(tree: ConfigTree, options: Namespace, arguments: Sequence[str], interruption: Interruption) -> int:
    """Check every job of a sweep, then make those whose runs have not ended. Returns the exit status. Raises
    ConfigError before the first one starts and, after a signal, KeyboardInterrupt."""
    jobs = tree.jobs(options.overrides, True, interruption.check)
    given = any(text.startswith(f"{SWEEP_FOLDER}=") for text in options.overrides)
    with interruption.armed(), ends_are_errors():
        # a folder with the time in its name may be of another command that begins at the same time
        _check_jobs(jobs, timed=jobs[0].timed and not given)
    line = set_command(arguments, SWEEP_FOLDER, typed(jobs[0].top))
    outcome: dict[Path, str] = {}  # the status of each run by its folder
    sweep: LocalSweep | None = None
    try:
        with ExitStack() as stack:
            for folder, standing in {job.top: job.standing for job in reversed(jobs)}.items():
                stack.callback(remove_empty, folder, standing or folder)
                stack.enter_context(folder_lock(folder, SWEEP_FOLDER))
            sweep = LocalSweep(jobs, jobs[0].at_once, outcome, interruption)
            sweep.run(interruption.end)
    except ConfigError as error:  # of a folder in use
        print(one_line(error), file=sys.stderr)
        return EXIT_CONFIG
    except Exception:  # of a user's code
        traceback.print_exc()
        return EXIT_FAILED
    finally:
        interruption.end()
        if outcome and sweep is not None:
            show({job.folder: outcome[job.folder] for job in jobs if job.folder in outcome})
            sweep.show_unfinished(sweep_command(line))
    return max((EXIT_STATUS.get(status, 0) for status in outcome.values()), default=0)


def _check_jobs(jobs: Sequence[Job], timed: bool) -> None:
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
            job.values["resume"] = None  # a new folder is empty
        with suppress(NothingToDo):  # it has no plan then
            job.plan = plan_job(job, folder, automatic)
        if job.plan is not None:
            check_with_torch(job.plan, True, models)
            if job.plan.engine != "sim" and (where := launch(os.environ)).kind != "local":
                started = f"got --multirun in {where.nodes} processes"
                raise ConfigError(f"a sweep must be started outside of {where.kind}, {started}")
            if not automatic and not timed and os.path.exists(folder / METRICS):
                same = has_configuration(folder, job.values)
                raise used(folder, SWEEP_FOLDER, job.folder, "; resume=auto makes the missing runs" if same else "")
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


@dataclass
class _Running:
    """A job with a running process. output: its output. shown: number of its lines shown so far."""

    folder: Path
    begun: float
    output: IO[bytes]
    shown: int = 0


@dataclass
class LocalSweep:
    """Starts the jobs of a sweep that have a plan, and collects their results."""

    _jobs: Sequence[Job]
    at_once: InitVar[int | None]  # number of parallel jobs; None: as many as fit (`jobs_at_once`)
    _outcome: dict[Path, str]  # takes the status of each run, by its folder
    _interruption: Interruption
    tally: InitVar[Tally | None] = None  # tally of a command with other sweeps; None: of these jobs alone
    _printed: set[str] = field(default_factory=set)  # lines that are not printed again
    _durations: dict[str | None, float] = field(default_factory=dict)  # by kind; infinite while its first job runs
    _children: Children = field(default_factory=Children)
    _running: dict[int, _Running] = field(default_factory=dict)
    _failed: list[str] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self, at_once: int | None, tally: Tally | None) -> None:
        self._at_once, self._auto = at_once or 1, at_once is None
        # of each job, the values that its duration depends on: all but the seed
        self._kinds = [job.plan and repr({**job.plan.config.values, "seed": None}) for job in self._jobs]
        self._tally = Tally() if tally is None else tally
        if tally is None:
            self._tally.expect(len(self._jobs))
            self._stack.callback(self._tally.close)

    def run(self, ended: Callable[[], None] = lambda: None) -> None:
        """Start every job and wait for the last. Raises KeyboardInterrupt after a signal.

        ended: called at the end, before signal handlers are restored."""
        waiting = [number for number, job in enumerate(self._jobs) if job.plan is not None]
        for job in self._jobs:
            if job.plan is None:
                self._outcome[job.folder] = read_status(job.folder) or "failed"
        self._tally.count_before(len(self._jobs) - len(waiting))
        plans = [job.plan for job in self._jobs if job.plan is not None]
        if plans:
            import_engines({plan.engine for plan in plans})  # each job would take more than a second to do it itself
            draw_shared(plan.config.experiment.data for plan in plans)
        if self._auto:
            self._at_once = jobs_at_once(plans)
        with self:
            while waiting:
                number = self.next(waiting)
                waiting.remove(number)
                self.start(number, self._work(self._jobs[number]))
            self.finish()
            ended()

    def _work(self, job: Job) -> Callable[[], str]:
        """Return the function that the process of a job runs. Its result is the status of the run."""
        assert job.plan is not None
        plan = with_threads(replace(job.plan, logged=False))  # the tally shows its progress

        def work() -> str:
            try:
                with self._interruption.armed():
                    return execute(plan, job.folder, None, self._interruption.end)
            except ConfigError as error:  # a folder in use, or an error that only loading data and model shows
                job.remove_empty()
                print(one_line(error), file=sys.stderr)
                sys.exit(EXIT_CONFIG)
            except KeyboardInterrupt:  # the folder may be empty
                job.remove_empty()
                raise

        return work

    def __enter__(self) -> LocalSweep:
        self._stack.enter_context(self._tally)
        self._stack.enter_context(self._children)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the running jobs. After an error without a signal, end them."""
        if kind is not None and not issubclass(kind, KeyboardInterrupt):
            self._children.end()
        with self._stack:
            self.finish()

    def next(self, waiting: Sequence[int]) -> int:
        """Wait for a free place, and return the job to start next.

        One job of each kind is first, in the order of the numbers, then the longest: so no core waits at the end for a
        long job that began late."""
        self._wait_for_room()
        if self._at_once == 1:
            return waiting[0]
        unknown = [number for number in waiting if self._kinds[number] not in self._durations]
        return unknown[0] if unknown else max(waiting, key=lambda number: self._durations[self._kinds[number]])

    def start(self, number: int, work: Callable[[], str]) -> None:
        """Start a job, once there is room for it. Raises KeyboardInterrupt if a signal has asked for the end."""
        self._wait_for_room()
        if self._children.signals:
            raise Interrupted
        folder, output = self._jobs[number].folder, self._stack.enter_context(_temporary())
        self._running[number] = _Running(folder, time.monotonic(), output)
        self._durations.setdefault(self._kinds[number], math.inf)
        self._tally.begin(self._jobs[number].label, lambda: _progress(folder))
        self._children.start(lambda: _into(output, work), number)

    def finish(self) -> None:
        """Wait for the running jobs."""
        while len(self._children):
            self._wait()

    def show_unfinished(self, again: str) -> None:
        """Print which jobs have failed, and the command that resumes the unfinished ones."""
        for line in self._failed:
            print(line)
        ended = sum(status in ENDED for status in self._outcome.values())
        if unfinished := len(self._jobs) - ended:
            print(f"{unfinished} of {len(self._jobs)} jobs unfinished; resume with: {again}")

    def _wait_for_room(self) -> None:
        while len(self._children) >= self._at_once:
            self._wait()

    def _wait(self) -> None:
        number, child = self._children.wait(self._look, LOOK_S)
        job, label = self._running.pop(number), self._jobs[number].label
        self._outcome[job.folder] = status = _status(child)
        self._show_lines(job, _lines(job.output, ended=True), repeated=status == "failed")
        job.output.close()
        self._durations[self._kinds[number]] = taken_s = time.monotonic() - job.begun
        self._tally.end(label)
        if status not in ENDED:
            self._tally.print(f"{label}: {_said(child)}, {taken_s:.0f} s")
        if status == "failed":
            self._failed.append(f"{label}: {_said(child)}, in {job.folder}")

    def _look(self) -> None:
        """Show the progress of the jobs; the lines of a single running job at once."""
        if self._at_once == 1:
            for job in self._running.values():
                self._show_lines(job, _lines(job.output))
        self._tally.show()

    def _show_lines(self, job: _Running, lines: Sequence[str], repeated: bool = False) -> None:
        """Show the new lines of a job. repeated: also show lines that other jobs have printed."""
        for line in lines[job.shown :]:
            if repeated or line not in self._printed:
                self._printed.add(line)
                self._tally.print(line)
        job.shown = len(lines)


def _progress(folder: Path) -> str:
    """Return the progress of a run by its record, like `epoch 3.0, accuracy 0.712`; empty before the first mark."""
    mark = read_last_mark(folder)
    if mark is None:
        return ""
    numbers = {name: mark.get(f"test_{name}") for name in ("accuracy", "loss")}
    measured = [f"{name} {value:.3f}" for name, value in numbers.items() if isinstance(value, float)]
    return ", ".join([f"epoch {mark.get('epoch', 0):.1f}", *measured[:1]])


def label_jobs(jobs: Sequence[Job]) -> None:
    """Give jobs distinct labels: the algorithm, and every other key that differs."""
    given = [job.typed for job in jobs]
    keys = [key for key in (given[0] if given else ()) if len({str(values.get(key)) for values in given}) > 1]
    for job, values in zip(jobs, given, strict=True):
        job.label = _label(job.values, {key: values[key] for key in keys if key in values})


def _label(values: Mapping[str, object], differing: Mapping[str, str]) -> str:
    algo = values["algo"]
    name = algo.get("name", "") if isinstance(algo, Mapping) else ""
    settings = [f"{key.rpartition('.')[2]}={value}" for key, value in differing.items() if key != "algo"]
    return " ".join([str(name), *settings])


def jobs_at_once(plans: Sequence[Plan]) -> int:
    """Return the number of parallel jobs, so that their threads have cores; one for real processes, and for gradients
    that may be on a GPU. Raises KeyboardInterrupt after a signal."""
    if any(plan.engine == "dist" for plan in plans):
        return 1
    kinds = {(kind_of(plan.config), plan.config.engine.gradients): plan.config for plan in plans}
    if any(map(may_be_on_accelerator, kinds.values())):
        return 1
    threads = max((plan.config.engine.threads or omp_threads(os.environ) or 1 for plan in plans), default=1)
    return max(1, cores() // threads)


def with_threads(plan: Plan) -> Plan:
    """Return the plan of a sweep's job with its number of threads, by default one: the last bits of its record must not
    depend on the number of parallel jobs."""
    if plan.config.engine.threads is not None or omp_threads(os.environ) or plan.engine == "dist":
        return plan
    return replace(plan, config=replace(plan.config, engine=replace(plan.config.engine, threads=1)))


def _temporary() -> IO[bytes]:
    return tempfile.TemporaryFile()  # the caller closes it


def _into(output: IO[bytes], run: Callable[[], str]) -> str:
    """Call `run`, in the job's process, with standard output and error in a file."""
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    print_utf8()
    return run()


def _lines(output: IO[bytes], ended: bool = False) -> list[str]:
    """Return the lines that a job has printed so far. ended: the last line is complete even without a newline."""
    text = os.pread(output.fileno(), os.fstat(output.fileno()).st_size, 0)  # seeking would move the job's position
    return (text if ended else text[: text.rfind(b"\n") + 1]).decode(errors="replace").splitlines()


def _status(child: ChildResult) -> str:
    return "interrupted" if child.status == EXIT_INTERRUPTED else child.text or "failed"


def _said(child: ChildResult) -> str:
    return f"killed by {signal.Signals(-child.status).name}" if child.status < 0 else _status(child)
