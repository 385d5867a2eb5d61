"""Fields of evaluation marks and of the summary, and the end of a run by its marks, for every engine.

A run diverges if a mark's loss is above `eval.diverged_factor` times the first mark's loss, or times 1 if that is
larger. The loss of one mini-batch is noisier. If all other samples of the training set had no loss, b of n samples with
mean loss L would give a mark of b/n L. So a mini-batch is beyond the limit only if its b samples alone would put a mark
there, and no outlier in a small batch ends a run.

A run that stays within the limit and learns nothing has collapsed: it ends with a higher training loss than at its
first mark, and than 1, and, with classes, with an accuracy not much above chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dsgd.crossing import Aim, CurvePoint
from dsgd.experiment import Experiment
from dsgd.problem.evaluation import FIELDS
from dsgd.problem.problem import Problem

Mark = dict[str, Any]

CHANCE = 1.5  # times the accuracy of guessing among equally frequent classes is not much more than that


class Diverged(ArithmeticError):
    """Raised in place of a gradient whose mini-batch has a loss beyond the limit."""


def marks_due(amount: float, interval: float) -> int:
    """Return the number of marks due after an amount of samples or seconds, one at each multiple of the interval."""
    marks = int(amount // interval)
    return marks + (amount >= (marks + 1) * interval)  # 512 // 102.4 is 4, because 102.4 is a little more than that


def least_due(marks: int, interval: float) -> float:
    """Return the least whole amount after which so many marks are due; infinity without an interval."""
    if interval == math.inf:
        return math.inf
    least = math.ceil(marks * interval)
    while marks_due(least - 1, interval) >= marks:
        least -= 1
    while marks_due(least, interval) < marks:
        least += 1
    return least


def limit_of_mark(experiment: Experiment, first: float) -> float:
    """Return the largest loss of a mark that does not end the run. first: the loss of the first mark."""
    return experiment.eval.diverged_factor * max(first, 1.0)


def limit_of_batch(experiment: Experiment, problem: Problem) -> float:
    """Return the largest loss of a mini-batch that does not end the run. It follows from worker 0's first batch at the
    common start, so it is the same in every process, and after resuming."""
    first = problem.batch_loss(problem.start, problem.start_buffers, 0, 0)
    return limit_of_mark(experiment, first) * experiment.epoch_samples / experiment.batch_size


def is_beyond(loss: float, limit: float) -> bool:
    """Return whether a loss is no number, infinite or above the limit."""
    return not math.isfinite(loss) or loss > limit


def has_collapsed(first: float | None, loss: float | None, accuracy: float | None, classes: int | None) -> bool:
    """Return whether a run at the end of its budget has collapsed.

    first, loss: training losses of its first and its last mark. accuracy: accuracy of the last mark. None: not
    measured."""
    if first is None or loss is None:
        return False
    return loss > max(first, 1.0) and (accuracy is None or not classes or accuracy <= CHANCE / classes)


@dataclass
class Progress:
    """Count the marks, keep their values, and end the run by them. Part of a checkpoint."""

    marks: int = 0
    last_mark: tuple[float, int] | None = None  # (time_s, samples)
    next_samples: int = 1  # the next mark is at this multiple of the interval of samples
    next_time: int = 1
    first_loss: float | None = None
    recent: list[CurvePoint] = field(default_factory=list)  # the last marks with a value of the target's field
    first_crossing: CurvePoint | None = None  # time_s, resolution_s
    last_crossing: CurvePoint | None = None
    smoothed_crossing: CurvePoint | None = None
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
        target = experiment.target
        if target.aim is not None and self._reaches(target.aim, values) and target.stop and status is None:
            status = "completed"
        return status

    def _reaches(self, aim: Aim, values: Mark) -> bool:
        """Note the crossings of the target at this mark. Returns True at the crossing that ends a run.

        That is the first, or the first of the smoothed curve. Only the end shows whether a crossing is stable: with
        that rule the run ends at the first."""
        value = values[aim.field]
        if value is None or not math.isfinite(value):
            return False
        self.recent = [*self.recent, (values["time_s"], value)][-aim.window - 1 :]
        before = self.ending_crossing(aim)
        if crossing := aim.crossing(*([None, *self.recent][-2:])):
            self.last_crossing = (crossing.time_s, crossing.resolution_s)
            self.first_crossing = self.first_crossing or self.last_crossing
        # crossings that later marks cannot change
        settled = aim.smoothed(self.recent)[: len(self.recent) - aim.delay]
        if self.smoothed_crossing is None and settled:
            self.smoothed_crossing = _first(aim, settled[-2:])
        return before is None and self.ending_crossing(aim) is not None

    def ending_crossing(self, aim: Aim) -> CurvePoint | None:
        """Return the crossing that ends a run with `target.stop`, or None."""
        return self.smoothed_crossing if aim.rule == "smoothed" else self.first_crossing

    def crossing_fields(self, aim: Aim | None, end_s: float, counts: bool) -> Mark:
        """Return the fields of a summary on crossings of the target by `dsgd.crossing`.

        end_s: the time of the run. counts: False for a run that diverged or collapsed, whose crossings do not count."""
        chosen = stable = None
        if aim is not None and self.recent and counts:
            stable = self.last_crossing if aim.is_reached(self.recent[-1][1]) else None
            smooth = self.smoothed_crossing or _first(aim, aim.smoothed(self.recent)[-aim.delay - 1 :])
            chosen = {"smoothed": smooth, "first": self.first_crossing, "stable": stable}[aim.rule]
        return {
            "time_to_target_s": None if chosen is None else chosen[0],
            "target_resolution_s": None if chosen is None else chosen[1],
            "target_censored_at_s": end_s if aim is not None and counts and chosen is None else None,
            "first_crossing_s": None if self.first_crossing is None else self.first_crossing[0],
            "stable_crossing_s": None if stable is None else stable[0],
        }


def _first(aim: Aim, points: Sequence[CurvePoint]) -> CurvePoint | None:
    """Return the first crossing between some marks of a curve whose earlier marks have not reached the target."""
    crossings = aim.crossings(points)
    return (crossings[0].time_s, crossings[0].resolution_s) if crossings else None


@dataclass(frozen=True)
class Counters:
    """The fields of a mark that need no evaluation.

    bytes_sent, bytes_received: [nodes], bytes of each node, servers included. idle: each worker's idle share of the
    time. staleness: steps of a worker, or updates of a server."""

    time_s: float
    clock: str  # virtual | wall
    samples: int
    bytes_sent: Sequence[float]
    bytes_received: Sequence[float]
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
            "bytes_received": round(sum(self.bytes_received)),
            "idle_fraction_mean": sum(self.idle) / len(self.idle),
            "idle_fraction_max": max(self.idle),
        }


def summary_of(
    experiment: Experiment,
    progress: Progress,
    status: str,
    counters: Counters,
    worker_steps: Sequence[int],
    server_nodes: Sequence[int],
    classes: int | None,
    dimension: int,
    message_bytes: float,
    collective: str,
) -> Mark:
    """Return the summary of a run: the last measured values, and the counters at its end.

    worker_steps: steps of each worker. server_nodes: nodes of the counters with a server. classes: number of the data's
    classes, or None. collective: name of the all-reduce."""
    values = dict.fromkeys(FIELDS) | (progress.last_values or {}) | counters.fields(experiment)
    collapsed = status == "completed" and has_collapsed(
        progress.first_loss, values["train_loss"], values["test_accuracy"], classes
    )
    return {
        "status": status,
        "collapsed": collapsed,
        "ended_by": ended_by(experiment, progress, status, counters),
        "clock": counters.clock,
        "time_s": counters.time_s,
        "samples": counters.samples,
        "epochs": values["epoch"],
        "steps": max(worker_steps, default=0),
        "worker_steps": list(worker_steps),
        **{field: values[field] for field in FIELDS},
        **progress.crossing_fields(
            experiment.target.aim, counters.time_s, counts=status != "diverged" and not collapsed
        ),
        **_byte_fields("bytes_sent", counters.bytes_sent, server_nodes),
        **_byte_fields("bytes_received", counters.bytes_received, server_nodes),
        **{key: values[key] for key in values if key.startswith(("idle_fraction", "staleness"))},
        "dimension": dimension,
        "message_bytes": message_bytes,
        "spectral_gap": experiment.topology.summarised_gap,
        "collective": collective,
    }


def ended_by(experiment: Experiment, progress: Progress, status: str, counters: Counters) -> str | None:
    """Return the reason for a run's end: `divergence`, `target`, or the key of a limit, like `budget.epochs`; None for
    a run that has not ended by itself."""
    if status == "diverged":
        return "divergence"
    if status != "completed":
        return None
    aim = experiment.target.aim
    if experiment.target.stop and aim is not None and progress.ending_crossing(aim) is not None:
        return "target"
    limits, limit_s = experiment.sample_limits, experiment.budget.time_s
    used_up = not limits or (limit_s is not None and counters.time_s >= limit_s)
    if used_up and counters.samples < min(limits.values(), default=math.inf):
        return "budget.time_s"
    return min(limits, key=lambda key: limits[key])


def _byte_fields(name: str, of_node: Sequence[float], server_nodes: Sequence[int]) -> Mark:
    return {
        f"{name}_total": round(sum(of_node)),
        f"{name}_max_node": round(max(of_node)),
        f"{name}_max_server": round(max(of_node[node] for node in server_nodes)) if server_nodes else None,
    }
