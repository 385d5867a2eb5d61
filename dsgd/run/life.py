"""The life of a run, whichever engine computes it: record, mirror, progress, checkpoints, signals, summary."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dsgd.data import DataLost
from dsgd.engine.marks import Mark
from dsgd.engine.trace import TraceRow, write_trace
from dsgd.record.checkpoint import NAME, write_checkpoint
from dsgd.record.mirror import Mirror
from dsgd.record.writer import Record
from dsgd.run.configuration import RunConfig
from dsgd.run.plan import Plan
from dsgd.run.progress import ProgressLine

LOOK_S = 0.1  # between two updates of the progress line


@dataclass(frozen=True)
class TrainingState:
    """status: running, then completed | diverged | interrupted | failed. error: one line, for failed. time_s: of the
    training clock. marks: evaluated so far, those before a resumption included."""

    status: str
    error: str
    time_s: float
    samples: int
    marks: int


class Training(Protocol):
    """A run under way in one of the engines, at its start or where a checkpoint left it."""

    engine: str  # sim | dist
    clock: str  # virtual | wall
    devices: list[str]  # their names
    header: dict[str, Any]  # what a checkpoint says of this engine

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
        """Tell everybody who takes part how the run has ended."""
        ...


class RecordLost(OSError):
    """The record cannot be written: one line."""


def live(plan: Plan, folder: Path, training: Training, caught: Sequence[int]) -> str:
    """Run to the end or to a signal, with the record in `folder`. Returns the status.

    caught: the signals that have come so far (`dsgd.host.signals.remembered`). The first asks for a checkpoint and the
    end."""
    config, checkpoint = plan.config, plan.checkpoint
    before, lines, wall_s = None, 0, 0.0
    if checkpoint is not None:
        before, lines, wall_s = checkpoint.path.parent, checkpoint.header["lines"], checkpoint.header["wall_s"]
    record = Record(folder, config.values, training.devices, before, lines, wall_s)
    mirror = Mirror(config.wandb, folder)
    progress = ProgressLine(config.experiment, training.clock)
    looked = 0.0

    def save(contents: Mapping[str, Any]) -> None:
        header = {
            "config": {**config.values, "resume": None},
            "engine": training.engine,
            **training.header,
            "lines": training.state.marks,
            "wall_s": record.wall_s,
        }
        with _writing(folder):
            record.sync()
            write_checkpoint(folder, header, dict(contents))

    def interrupted() -> bool:
        nonlocal looked
        now = time.monotonic()
        if now - looked > LOOK_S:
            looked = now
            state = training.state
            progress.moved(state.time_s, state.samples, record.wall_s)
        return bool(caught)

    status, error = "failed", ""
    try:
        with progress:
            for mark in training.run(interrupted, save):
                with _writing(folder):
                    record.mark(mark)
                mirror.wake()
                progress.measured(mark)
        status, error = training.state.status, training.state.error
        if status in ("completed", "diverged"):
            (folder / NAME).unlink(missing_ok=True)  # there is nothing to go on with
    except KeyboardInterrupt:  # a second Ctrl-C
        status = "interrupted"
    except (DataLost, RecordLost) as failure:
        error = str(failure)
    except Exception as failure:  # whatever an algorithm, a model or a data set may raise
        where = "evaluation" if training.engine == "dist" else "simulation"
        error = f"the {where} failed: {type(failure).__name__}: {failure}"
        raise
    finally:
        if status == "failed":
            print(error, file=sys.stderr, flush=True)  # also where the summary cannot be written
        summary = _described(config, training) | training.summary() | training.header
        try:
            record.finish({**summary, "status": status, "error": error or None})
        except OSError as failure:
            print(f"the summary in {folder} cannot be written: {failure.strerror}", file=sys.stderr, flush=True)
            status = "failed"
        training.close(status)
        mirror.finish()
    if config.experiment.trace:
        write_trace(training.trace_rows(), training.state.time_s, folder / "trace.json")
    return status


def _described(config: RunConfig, training: Training) -> dict[str, Any]:
    """Return the part of the summary that says what was run."""
    values, experiment = config.values, config.experiment
    return {
        "algo": values["algo"]["name"],
        "nodes": experiment.nodes,
        "engine": training.engine,
        "model": values["model"]["name"],
        "data": values["data"]["name"],
        "topology": experiment.topology.name,
        "seed": experiment.seed,
        "target_accuracy": experiment.target.accuracy,
        "time_model": experiment.cluster.time_model,
    }


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RecordLost(f"the record in {folder} cannot be written: {error.strerror}") from error
