"""Describe one experiment: everything that decides its result, checked before any work. Knows no engine, no Hydra."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from dsgd.cluster import Cluster
from dsgd.cluster.failures import Failures
from dsgd.crossing import RULES, WINDOW, Aim
from dsgd.data import DataConfig
from dsgd.keys import Key, check_options
from dsgd.models import ModelConfig
from dsgd.optim.optimizer import LARGEST, Optimizer
from dsgd.optim.schedule import Schedule
from dsgd.topology import Topology
from dsgd.worker import Algorithm

MOST_MARKS = 1_000_000  # by time: each is an evaluation and a line of the record


@dataclass(frozen=True)
class Budget:
    """Limits of the training; the first one reached ends it. Epochs and samples are of all workers, steps of each."""

    epochs: Annotated[float | None, Key("{} epochs", "> 0 or null")] = None
    samples: Annotated[int | None, Key("{} samples", "> 0 or null")] = None
    steps: Annotated[int | None, Key("{} steps", "> 0 or null")] = None
    time_s: Annotated[float | None, Key("{}", "> 0 or null")] = None  # of the training clock

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class Evaluation:
    """Marks at which the output model is evaluated, in addition to the start and the end, and how."""

    every_epochs: float | None = None
    every_samples: int | None = None
    every_steps: int | None = None
    every_time_s: float | None = None
    # statistics of the output model: average the workers' | recalibrate on training data | auto: recalibrate for a
    # centre
    batch_norm: str = "auto"
    train_samples: int | None = None  # train_loss is over this many training samples; null: all
    workers: int | str = "none"  # with own accuracies: all | a number, spread evenly | none; first and last mark: all
    conservation: bool = False  # record the drift of the sums that the algorithm conserves; a simulation only
    test_folds: bool = False  # also evaluate equal parts of the test set at the end; a simulation only
    diverged_factor: float = 1e6  # a loss this many times the first one ends the run as diverged: rules/marks.py

    def __post_init__(self) -> None:
        counts = ("every_epochs", "every_samples", "every_steps", "every_time_s", "train_samples")
        check_options(self, **dict.fromkeys(counts, "> 0 or null"))
        if self.batch_norm not in ("auto", "average", "recalibrate"):
            raise ValueError(f"batch_norm must be auto, average or recalibrate, got {self.batch_norm!r}")
        if not (self.workers >= 1 if isinstance(self.workers, int) else self.workers in ("all", "none")):
            raise ValueError(f"workers must be all, none or a number >= 1, got {self.workers!r}")
        if not self.diverged_factor > 1:
            raise ValueError(f"diverged_factor must be > 1, got {self.diverged_factor}")


@dataclass(frozen=True)
class Target:
    """A test accuracy, or a test loss, and when it is reached is recorded."""

    accuracy: float | None = None
    loss: float | None = None
    crossing: str = RULES[0]  # which one counts: smoothed | first | stable, as dsgd/crossing.py defines them
    window: int = WINDOW  # marks that `smoothed` takes the median of
    stop: bool = False  # end the run there

    def __post_init__(self) -> None:
        check_options(self, accuracy="in (0, 1] or null", loss="> 0 or null")
        Aim("", 0.0, self.crossing, self.window)
        if self.accuracy is not None and self.loss is not None:
            raise ValueError(f"loss must be null with target.accuracy={self.accuracy:g}, got {self.loss:g}")
        if self.stop and self.aim is None:
            raise ValueError("stop must be false without target.accuracy or target.loss, got true")

    @property
    def aim(self) -> Aim | None:
        """Return the field of the marks and its level."""
        if self.accuracy is not None:
            return Aim("test_accuracy", self.accuracy, self.crossing, self.window)
        return None if self.loss is None else Aim("test_loss", self.loss, self.crossing, self.window)


@dataclass(frozen=True)
class Experiment:
    """One run, checked. nodes: number of workers. batch_size: per worker. topology: the graph, already built."""

    nodes: Annotated[int, Key("{} nodes")]
    batch_size: Annotated[int, Key("batch {} per node", axis="batch size per node")]
    seed: Annotated[int, Key("seed {}")]
    precision: Annotated[str, Key("{}")]
    algo: Annotated[Algorithm, Key(axis="algorithm")]
    model: ModelConfig
    data: DataConfig
    optimizer: Optimizer
    schedule: Schedule
    cluster: Cluster
    topology: Topology
    budget: Budget
    eval: Evaluation
    target: Target
    gradients: str = "loop"  # auto | compiled | loop | graphs | none
    device: str = "auto"  # of gradients: auto | cpu | accelerator | one of torch's types
    channels_last: bool = False  # images and kernels in memory
    compile: bool = False  # the model, by torch.compile
    trace: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.algo.backups < self.nodes:
            raise ValueError(f"algo.backups must be in [0, {self.nodes - 1}] (nodes - 1), got {self.algo.backups}")
        if self.total_samples is None and self.budget.time_s is None:
            raise ValueError("budget must give at least one of epochs, samples, steps, time_s, got none")
        if self.total_samples == 0:
            budget = self.budget
            least = min(self._in_samples(budget.epochs, budget.samples, budget.steps).values())
            raise ValueError(f"budget must allow one step of {self.unit} samples, got {least:g} samples")
        if self.schedule.kind == "cosine" and self.total_samples is None:
            raise ValueError(
                "schedule=cosine needs budget.epochs, budget.samples or budget.steps, got budget.time_s only"
            )
        if self.algo.hides_sums and self.cluster.collective_messages:
            rule = "cluster.collective_messages must be false with algo.overlap=backward, which formulas alone time"
            raise ValueError(f"{rule}, got true")
        if self.cluster.failing is not None:
            self._check_failures(self.cluster.failing)
        if self.total_samples is not None and self.total_samples >= 2**63:
            raise ValueError(f"budget must be < 2^63 samples, got {self.total_samples:.3g}")
        if self.mark_samples < 1:
            marks = {name: getattr(self.eval, f"every_{name}") for name in ("epochs", "samples", "steps")}
            given = ", ".join(f"eval.every_{name}={value:g}" for name, value in marks.items() if value is not None)
            raise ValueError(f"eval.every_epochs must be at least one sample, got {self.mark_samples:g} ({given})")
        if (rate := self.peak_lr * self.schedule.highest) > LARGEST:
            raise ValueError(f"optimizer.lr must stay <= {LARGEST:g} through schedule.*, got {rate:g}")
        every_s = self.eval.every_time_s
        if every_s is not None and (lasts_s := self.least_time_s()) / every_s > MOST_MARKS:
            rule = f">= {lasts_s / MOST_MARKS:g} ({MOST_MARKS:,} marks in {lasts_s:g} s, about what the budget allows)"
            raise ValueError(f"eval.every_time_s must be {rule}, got {every_s:g}")
        if self.eval.conservation and self.gradients == "none":
            raise ValueError("eval.conservation must be false with engine.gradients=none, got true")
        if self.target.accuracy is not None and self.data.classes is None:
            raise ValueError(f"target.accuracy must be null for data without classes, got {self.target.accuracy}")

    def _check_failures(self, failing: Failures) -> None:
        """Raise ValueError for failures that this run cannot have."""
        failing.check(self.nodes, 0 if self.cluster.servers_colocated else self.algo.servers)
        if self.budget.time_s is not None:
            failing.check_time(self.budget.time_s)
        if self.eval.conservation and (self.algo.elastic or not self.algo.lockstep):
            rule = "eval.conservation must be false with cluster.failures and algo.elastic or a method that is not in"
            raise ValueError(f"{rule} lock-step, whose workers come back with others' parameters, got true")
        if self.algo.elastic and self.cluster.islands > 1:
            rule = "algo.elastic must be false with cluster.islands, whose all-reduces need equally many nodes in each"
            raise ValueError(f"{rule}; cluster.links can have the same regions, got true")
        if self.algo.elastic and self.cluster.collective_messages:
            rule = "algo.elastic must be false with cluster.collective_messages, which needs all nodes"
            raise ValueError(f"{rule}; collective_messages=false has formulas for fewer, got true")

    def least_time_s(self) -> float:
        """Estimate the duration of the budget on the simulator's clock, 0 if only messages take time."""
        limit_s = math.inf if self.budget.time_s is None else self.budget.time_s
        total = math.inf if self.total_samples is None else self.total_samples
        return min(limit_s, self.cluster.longest_s * total / self._step_samples)

    @cached_property
    def epoch_samples(self) -> int:
        """Number of training samples: all workers together process them in one epoch."""
        return self.data.train_samples(self.nodes)

    @property
    def contributors(self) -> int:
        """Number of workers whose gradients count in a step of all."""
        return self._step_samples // self.batch_size

    @cached_property
    def unit(self) -> int:
        """Samples of the smallest piece of work: a step of all workers in lock-step, otherwise of one worker."""
        return self._step_samples if self.algo.lockstep else self.batch_size

    @cached_property
    def _step_samples(self) -> int:
        """Samples that count when every worker has made one step."""
        return self.batch_size * (self.nodes - self.algo.backups)

    def samples_of(self, steps: int) -> int:
        """Return the samples in `steps` steps of single workers."""
        return steps * self._step_samples // self.nodes

    def _in_samples(self, epochs: float | None, samples: int | None, steps: int | None) -> dict[str, float]:
        """Return the given ones of the three limits by name, in samples of all workers."""
        counts = {
            "epochs": None if epochs is None else epochs * self.epoch_samples,
            "samples": samples,
            "steps": None if steps is None else steps * self._step_samples,
        }
        return {name: count for name, count in counts.items() if count is not None}

    @cached_property
    def sample_limits(self) -> dict[str, int]:
        """Samples that each given limit of the budget allows, in whole steps, by its key; without the limit of time."""
        budget = self.budget
        counts = self._in_samples(budget.epochs, budget.samples, budget.steps)
        return {f"budget.{name}": int(count // self.unit) * self.unit for name, count in counts.items()}

    def steps_in(self, samples: int) -> int:
        """Return the steps of each worker, all equally fast, in a number of samples of all workers."""
        return samples // self._step_samples

    @cached_property
    def total_samples(self) -> int | None:
        """Return the budget in samples of all workers, rounded down to whole steps; None if only the time is
        limited."""
        return min(self.sample_limits.values(), default=None)

    @cached_property
    def mark_samples(self) -> float:
        """Return the samples between two evaluation marks; infinity if samples do not set them."""
        marks = self.eval
        counts = self._in_samples(marks.every_epochs, marks.every_samples, marks.every_steps)
        return min(counts.values(), default=math.inf)

    def learning_rate(self, samples: int) -> float:
        """Return the rate of a step that begins after `samples` processed samples of all workers."""
        epoch_samples, total = self.epoch_samples, self.total_samples
        epochs = None if total is None else total / epoch_samples
        return self.optimizer.lr * self.schedule.factor(samples / epoch_samples, epochs, self.scale)

    @cached_property
    def scale(self) -> float:
        """Factor of the linear scaling rule, 1 without it."""
        rule = self.schedule
        if not rule.linear_scaling:
            return 1.0
        return self._step_samples / (rule.reference_batch or self.batch_size)

    @cached_property
    def peak_lr(self) -> float:
        """Highest learning rate of the schedule."""
        return self.optimizer.lr * max(1.0, self.scale)
