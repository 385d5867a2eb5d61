"""Fields of evaluation marks and of the summary, and the end of a run by its marks, for every engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dsgd.engine.divergence import has_collapsed, is_beyond, limit_of_mark
from dsgd.experiment import Experiment
from dsgd.problem.evaluation import FIELDS

Mark = dict[str, Any]


@dataclass
class Progress:
    """Count the marks, remember what they showed, and end the run by it. Part of a checkpoint."""

    marks: int = 0
    last_mark: tuple[float, int] | None = None  # (time_s, samples)
    next_samples: int = 1  # how many intervals of samples the next mark is at
    next_time: int = 1
    first_loss: float | None = None
    time_to_target_s: float | None = None
    last_values: Mark | None = None

    def judge(self, experiment: Experiment, values: Mark) -> str | None:
        """Return the status with which this mark ends the run, `diverged` or `completed` at the target; else None."""
        self.last_values = values
        status = None
        loss = values["train_loss"]
        if loss is not None:
            first = self.first_loss = loss if self.first_loss is None else self.first_loss
            if is_beyond(loss, limit_of_mark(experiment, first)):
                status = "diverged"
        accuracy, target = values["test_accuracy"], experiment.target
        reached = target.accuracy is not None and accuracy is not None and accuracy >= target.accuracy
        if reached and self.time_to_target_s is None:
            self.time_to_target_s = values["time_s"]
            if target.stop:
                status = "completed"
        return status


@dataclass(frozen=True)
class Counters:
    """The fields of a mark that need no evaluation.

    bytes_sent: of each node. idle: each worker's idle share of the time. staleness: in steps of the sender, or updates
    of a server."""

    time_s: float
    clock: str  # virtual | wall
    samples: int
    bytes_sent: Sequence[float]
    idle: Sequence[float]
    staleness_mean: float
    staleness_max: int

    def fields(self, experiment: Experiment) -> Mark:
        return {
            "time_s": self.time_s,
            "clock": self.clock,
            "samples": self.samples,
            "epoch": self.samples / experiment.epoch_samples,
            "lr": experiment.learning_rate(self.samples),
            "staleness_mean": self.staleness_mean,
            "staleness_max": self.staleness_max,
            "bytes_sent": round(sum(self.bytes_sent)),
            "idle_fraction_mean": sum(self.idle) / len(self.idle),
            "idle_fraction_max": max(self.idle),
        }


def summary_of(
    experiment: Experiment,
    progress: Progress,
    status: str,
    counters: Counters,
    steps: int,
    classes: int | None,
    dimension: int,
    message_bytes: float,
    collective: str,
) -> Mark:
    """Return the summary of a run: the last measured values, and the counters at its end.

    steps: of the worker with the most. classes: of the data, None without. collective: the name of the all-reduce."""
    values = dict.fromkeys(FIELDS) | (progress.last_values or {}) | counters.fields(experiment)
    return {
        "status": status,
        "collapsed": status == "completed"
        and has_collapsed(progress.first_loss, values["train_loss"], values["test_accuracy"], classes),
        "clock": counters.clock,
        "time_s": counters.time_s,
        "samples": counters.samples,
        "epochs": values["epoch"],
        "steps": steps,
        **{field: values[field] for field in FIELDS},
        "time_to_target_s": progress.time_to_target_s,
        "bytes_sent_total": round(sum(counters.bytes_sent)),
        "bytes_sent_max_node": round(max(counters.bytes_sent)),
        **{key: values[key] for key in values if key.startswith(("idle_fraction", "staleness"))},
        "dimension": dimension,
        "message_bytes": message_bytes,
        "spectral_gap": experiment.topology.spectral_gap,
        "collective": collective,
    }
