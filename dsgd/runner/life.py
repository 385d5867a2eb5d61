"""The life of a run with any engine: record, mirror, progress, checkpoints, signals, summary."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from dsgd.data import DataLost
from dsgd.data.protocols import Digest
from dsgd.engines.rules.marks import Mark
from dsgd.engines.rules.trace import TraceRow, trace_text
from dsgd.experiment import Experiment
from dsgd.host.signals import Interrupted, StopRequests
from dsgd.host.terminal import EVERY_S, bar_console
from dsgd.problem.problem import Problem, complaint, problem_digest
from dsgd.problem.slots import ModelFailed
from dsgd.record.checkpoint_file import NAME, with_header, write_checkpoint
from dsgd.record.mirror import Mirror
from dsgd.record.reader import name_of
from dsgd.record.safe_files import write_atomically
from dsgd.record.safe_text import counted, for_terminal, plain_number
from dsgd.record.writer import TRACE, Record
from dsgd.runner.configuration import RunConfig
from dsgd.runner.plan import Plan
from dsgd.runner.resume import ENDED, Checkpoint
from dsgd.runner.values import ConfigError

LOOK_S = 0.1  # between two updates of the progress line

DIGEST = "digest"  # in checkpoints


class ProgressLine:
    """A line on the terminal, in a `with` around the run. If stderr is not a terminal, as in the log of a batch job, it
    prints a line for the first mark and for the last one, and between them at most one every EVERY_S.

    on_terminal: True if stderr is a terminal."""

    def __init__(self, experiment: Experiment, name: str, clock: str, logged: bool = True) -> None:
        """name: name of the algorithm. clock: `virtual` or `wall`. logged: print lines without a terminal."""
        self._name = for_terminal(name)
        self._clock = "virtual" if clock == "virtual" else "of training"
        console, self.on_terminal = bar_console()
        self._logged = logged and not self.on_terminal
        self._time_budget = experiment.budget.time_s
        self._samples_budget = experiment.total_samples
        self._epoch_samples = experiment.epoch_samples
        self._progress = Progress(
            TextColumn("{task.fields[line]}"), BarColumn(), TimeRemainingColumn(), console=console, transient=True
        )
        self._measured = ""
        self._task = self._progress.add_task("", total=1.0, line="starting") if self.on_terminal else None
        self._waiting = ""  # the line of a mark too soon after another
        self._next_s = 0.0  # host time from which on a line may be printed

    def __enter__(self) -> None:
        if self.on_terminal:
            self._progress.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.on_terminal:
            self._progress.stop()
        if self._waiting:
            print(self._waiting, file=sys.stderr, flush=True)

    def moved(self, time_s: float, samples: int, wall_s: float) -> None:
        """Show the progress of the run. time_s: time on the training clock. wall_s: time of the host."""
        if self._task is None:
            return
        done = [time_s / self._time_budget] if self._time_budget else []
        done += [samples / self._samples_budget] if self._samples_budget else []
        line = f"{time_s:.4g} s {self._clock}, {wall_s:.0f} s host, {samples:,} samples{self._measured}"
        self._progress.update(self._task, completed=max(done), line=line)

    def measured(self, mark: Mapping[str, Any], wall_s: float) -> None:
        """Show loss and accuracy of a mark: on a terminal from the next `moved` on, elsewhere by a line like `gossip:
        epoch 3.0 of 20, accuracy 0.712, 41 s`. wall_s: host time so far."""
        loss, accuracy = mark["test_loss"], mark["test_accuracy"]
        self._measured = "" if loss is None else f", loss {loss:.4g}"
        self._measured += "" if accuracy is None else f", accuracy {accuracy:.2%}"
        if not self._logged:
            return
        parts = [f"epoch {mark['epoch']:.1f}"]
        if self._samples_budget:
            epochs = self._samples_budget / self._epoch_samples
            parts[0] += f" of {epochs:.3g}" if epochs < 100 else f" of {epochs:,.0f}"
        if self._time_budget:
            parts.append(f"{mark['time_s']:.4g} of {plain_number(self._time_budget)} s {self._clock}")
        if accuracy is not None:
            parts.append(f"accuracy {accuracy:.3f}")
        elif loss is not None:
            parts.append(f"loss {loss:.4g}")
        self._waiting = f"{self._name}: {', '.join(parts)}, {wall_s:.0f} s"
        if wall_s >= self._next_s:
            print(self._waiting, file=sys.stderr, flush=True)
            self._waiting, self._next_s = "", wall_s + EVERY_S


@dataclass(frozen=True)
class TrainingState:
    """The state of training. status: running, then completed | diverged | interrupted | failed. error: one line, for
    failed. time_s: time on the training clock."""

    status: str
    error: str
    time_s: float
    samples: int


class Training(Protocol):
    """A run in one of the engines, at its start or at a checkpoint."""

    engine: str  # sim | dist | torch
    clock: str  # virtual | wall
    devices: list[str]  # their names
    header: dict[str, Any]  # this engine's fields of a checkpoint
    circumstances: dict[str, Any]  # further fields of env.json alone
    digest: Digest  # of its data and model, likewise

    @property
    def state(self) -> TrainingState: ...

    def run(self, interrupted: Callable[[], bool], save: Callable[[Mapping[str, Any]], None]) -> Iterator[Mark]:
        """Yield every mark. Ends early, with a checkpoint, soon after `interrupted` has returned True. Calls `save`
        with the contents of every checkpoint that is due."""
        ...

    def summary(self) -> Mark:
        """Return the fields of the run as a whole, so far."""
        ...

    def trace_rows(self) -> list[TraceRow]: ...

    def close(self, outcome: str) -> None:
        """Announce the end of the run to all of its processes."""
        ...


class RecordLost(OSError):
    """The record cannot be written: one line."""


def live(plan: Plan, folder: Path, training: Training, stops: StopRequests) -> str:
    """Run to the end or to a signal, with the record in `folder`. Returns the status.

    stops: the first asks for a checkpoint and the end. After the status is decided, stops have no effect."""
    config = plan.config
    try:
        with _writing(folder):
            record = _begun(plan, folder, training)
    except RecordLost as failure:
        print(for_terminal(str(failure)), file=sys.stderr, flush=True)
        training.close("failed")
        return "failed"
    mirror = Mirror(config.trackers, folder) if config.trackers else None
    progress = ProgressLine(config.experiment, config.values["algo"]["name"], training.clock, plan.logged)
    looked = 0.0

    def save(contents: Mapping[str, Any]) -> None:
        header = {
            **_configured(plan),
            "engine": training.engine,
            **training.header,
            DIGEST: training.digest,
            "wall_s": record.wall_s,
            "samples": _samples(contents, plan.config.experiment.batch_size, training.state.samples),
        }
        with stops.held(), _writing(folder):
            write_checkpoint(folder, {**header, **record.counted()}, dict(contents))

    def interrupted() -> bool:
        nonlocal looked
        now = time.monotonic()
        if progress.on_terminal and now - looked > LOOK_S:
            looked = now
            state = training.state
            progress.moved(state.time_s, state.samples, record.wall_s)
        return stops.check()

    status, error = "failed", ""
    try:
        with progress, stops.armed():
            for mark in training.run(interrupted, save):
                with stops.held(), _writing(folder):
                    record.mark(mark)
                if mirror is not None:
                    mirror.wake()
                progress.measured(mark, record.wall_s)
        status, error = training.state.status, training.state.error
    except Interrupted:  # a second Ctrl-C
        status = "interrupted"
    except (DataLost, ModelFailed, RecordLost) as failure:
        error = str(failure)
    except BaseException as failure:  # an algorithm, a model or a data set may raise anything
        where = {"sim": "simulation", "dist": "evaluation"}.get(training.engine, "training")
        error = f"the {where} failed: {type(failure).__name__}: {failure}"
        if isinstance(failure, Exception):
            raise
        raise RuntimeError(error) from failure  # a SystemExit would end this process without an error
    finally:
        status = _finish(plan, folder, training, record, status, error)
        training.close(status)
        if mirror is not None:
            mirror.finish()
    return status


def _samples(contents: Mapping[str, Any], batch_size: int, so_far: int) -> int:
    """Return the samples of a checkpoint, whose workers may be at different steps. so_far: samples of the run."""
    workers = contents.get("workers")
    return so_far if workers is None else batch_size * sum(worker["steps"] for worker in workers)


def _begun(plan: Plan, folder: Path, training: Training) -> Record:
    """Begin the record, or resume the record of the plan's checkpoint.

    At every moment the folder holds one run, with its own checkpoint or none: first an earlier summary is removed, then
    the checkpoint gets the larger budget, or is removed if it is another run's."""
    values, checkpoint = plan.config.values, plan.checkpoint
    chosen = {**training.header, **training.circumstances}
    here = folder / NAME
    if checkpoint is None:
        return Record(folder, values, training.devices, chosen=chosen, others={NAME: None})
    header, others = checkpoint.header, dict[str, bytes | None]()
    if not (here.exists() and here.samefile(checkpoint.path)):
        others[NAME] = None
    elif header["config"]["budget"] != values["budget"]:
        others[NAME] = with_header(here, {**header, **_configured(plan)})
    before = (checkpoint.path.parent, header["lines"], header["wall_s"])
    return Record(folder, values, training.devices, *before, chosen=chosen, others=others)


def _configured(plan: Plan) -> dict[str, Any]:
    """Return the fields of a checkpoint's header about the configuration."""
    return {"config": {**plan.config.values, "resume": None}, **_extended(plan)}


def _finish(plan: Plan, folder: Path, training: Training, record: Record, status: str, error: str) -> str:
    """Write the end of a record. Returns the status: failed if it cannot be written.

    At every moment the run can be resumed: the checkpoint is removed after the summary is written."""
    if plan.config.experiment.trace and status != "failed":
        try:
            pieces = trace_text(training.trace_rows(), training.state.time_s)
            with _writing(folder):
                write_atomically(folder / TRACE, (piece.encode() for piece in pieces))
        except RecordLost as failure:
            status, error = "failed", str(failure)
    if status == "failed":
        print(for_terminal(error), file=sys.stderr, flush=True)  # also if the summary cannot be written
    summary = _described(plan.config, training) | training.summary() | training.header | _extended(plan)
    try:
        record.finish({**summary, "status": status, "error": error or None})
    except OSError as failure:
        print(f"the summary in {folder} cannot be written: {failure.strerror}", file=sys.stderr, flush=True)
        return "failed"
    if plan.logged and (line := completed_line(plan.config.experiment, summary)):
        print(line, file=sys.stderr, flush=True)
    if status in ENDED and not (plan.config.engine.keep_checkpoint and status == "completed"):
        with contextlib.suppress(OSError):  # with this summary, a remaining checkpoint has no effect
            (folder / NAME).unlink(missing_ok=True)
    return status


def completed_line(experiment: Experiment, summary: Mapping[str, Any]) -> str:
    """Return a line on the limit that has ended a run with several; empty for a run with one, or not ended.

    summary: mapping with `ended_by`, `algo` and `steps`."""
    ended_by = str(summary["ended_by"] or "")
    several = len(experiment.sample_limits) + (experiment.budget.time_s is not None) > 1
    if not (several and ended_by.startswith("budget.")):
        return ""
    limit = f"{getattr(experiment.budget, ended_by.removeprefix('budget.')):.15g}"
    return f"{summary['algo']}: completed after {counted(summary['steps'], 'step')}, ended by {ended_by}={limit}"


def _extended(plan: Plan) -> dict[str, Any]:
    """Return the fields of checkpoint and summary for a run that was resumed with a larger budget."""
    return {"extended": list(plan.extended)} if plan.extended else {}


def _described(config: RunConfig, training: Training) -> dict[str, Any]:
    """Return the part of the summary that describes the run."""
    values, experiment = config.values, config.experiment
    return {
        "algo": values["algo"]["name"],
        "nodes": experiment.nodes,
        "engine": training.engine,
        "model": name_of(values["model"]),
        "data": name_of(values["data"]),
        "topology": experiment.topology.name,
        "seed": experiment.seed,
        "target_accuracy": experiment.target.accuracy,
        "target_loss": experiment.target.loss,
        "time_model": experiment.cluster.time_model,
    }


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RecordLost(f"the record in {folder} cannot be written: {error.strerror}") from error


def checked_digest(problem: Problem, checkpoint: Checkpoint | None) -> Digest:
    """Return the digest of a problem. Raises ConfigError if its checkpoint has another digest."""
    try:
        digest = problem_digest(problem)
    except DataLost as error:
        raise ConfigError(str(error)) from error
    stored: Any = None if checkpoint is None else checkpoint.header.get(DIGEST)
    if isinstance(stored, Mapping):  # earlier versions did not store it
        known = {part: hashes for part, hashes in stored.items() if isinstance(hashes, dict)}
        if differs := complaint(digest, known):
            raise ConfigError(f"resume must find the data and the model that the run began with, got {differs}")
    return digest
