"""One run as configured: types, ranges, and what fits together. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsgd.checks import check_options
from dsgd.experiment import Budget, Evaluation, Experiment, Target
from dsgd.optim.optimizer import SGD
from dsgd.optim.schedule import Schedule
from dsgd.record.trackers import MlflowOptions, TensorboardOptions, WandbOptions, chosen
from dsgd.runner.trust import TRUSTED
from dsgd.runner.values import CHOSEN, ConfigError, build, checked, prefixed, shown

CHOICES = {  # of `engine.*`
    "name": ("auto", "sim", "dist", "torch"),
    "gradients": ("auto", "compiled", "loop", "graphs", "none"),
    "device": ("auto", "cpu", "cuda"),
    "transport": ("auto", "tcp"),
    "collectives": ("own", "torch"),
}
PRECISIONS = ("fp32", "fp64", "tf32", "bf16", "fp16")
MOST_THREADS = 1024  # which torch starts at once: more than any machine has cores
MOST_NODES = 2**14  # workers: the mixing matrix of so many takes 2 GB
KEYS = ("nodes", "batch_size", "seed", "precision", "channels_last", "compile", "trace", "resume")
KEYS += (*CHOSEN, "budget", "eval", "target", "track", "wandb", "tensorboard", "mlflow")


@dataclass(frozen=True)
class EngineOptions:
    """Options of `engine.*`, which change no result of the simulator but for the last bits. The last six are for
    engine=dist, timeout_s and gpus_per_node also for engine=torch. Checkpoints are for all engines."""

    name: str = "auto"  # auto | sim | dist | torch
    gradients: str = "auto"  # auto | compiled | loop | graphs | none: timing only
    device: str = "auto"  # auto | cpu | cuda
    threads: int | None = None  # cores for gradients side by side; null: `dsgd.engines.sim.simulated` decides
    checkpoint_every_s: float | None = None  # of host time
    keep_checkpoint: bool = False  # of a completed run, to resume with a larger budget
    timeout_s: float = 60.0
    patience_s: float = 2.0
    gpus_per_node: int | None = None
    workers_per_gpu: int = 1
    transport: str = "auto"  # auto | tcp
    collectives: str = "own"  # own | torch: sums over all workers on CPUs

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if (given := getattr(self, name)) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {shown(given)}")
        if self.collectives == "torch" and self.workers_per_gpu > 1:
            raise ValueError(
                f"collectives must be own where workers_per_gpu = {self.workers_per_gpu} share one, got torch"
            )
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be >= 1, got {self.threads}")
        if self.threads is not None and self.threads > MOST_THREADS:
            raise ValueError(f"threads must be <= {MOST_THREADS}, got {self.threads}")
        if self.checkpoint_every_s is not None and not self.checkpoint_every_s > 0:
            raise ValueError(f"checkpoint_every_s must be > 0 or null, got {self.checkpoint_every_s}")
        check_options(self, timeout_s="in [1, 86400]")
        if not 0 < self.patience_s <= self.timeout_s:
            raise ValueError(f"patience_s must be in (0, timeout_s = {self.timeout_s:g}], got {self.patience_s}")
        if self.gpus_per_node is not None and self.gpus_per_node < 0:
            raise ValueError(f"gpus_per_node must be >= 0, got {self.gpus_per_node}")
        check_options(self, workers_per_gpu=">= 1")
        if self.workers_per_gpu > 1 and self.gpus_per_node not in (None, 1):
            expected = f"1 or null where workers_per_gpu = {self.workers_per_gpu} share one"
            raise ValueError(f"gpus_per_node must be {expected}, got {self.gpus_per_node}")


@dataclass(frozen=True)
class SweepOptions:
    """Options of `sweep.*`, which are no part of any run. jobs: auto, or how many of a sweep run at a time."""

    jobs: Any = "auto"

    def __post_init__(self) -> None:
        number = isinstance(self.jobs, int) and not isinstance(self.jobs, bool) and self.jobs >= 1
        if not number and self.jobs != "auto":
            raise ValueError(f"jobs must be auto or a number >= 1, got {shown(self.jobs)}")

    @property
    def at_once(self) -> int | None:
        """Return the number of jobs, None for auto."""
        return None if self.jobs == "auto" else self.jobs


@dataclass(frozen=True)
class RunConfig:
    """One run as configured. trackers: by name, how many seconds the run waits for each at its end. values: the same as
    plain values, as `config.yaml` has them."""

    experiment: Experiment
    engine: EngineOptions
    wandb: WandbOptions
    trackers: Mapping[str, float]
    values: Mapping[str, Any]


# groups of keys, each with the class of its options; None: the class that it names. Topology and algorithm need others
PARTS = {
    **dict.fromkeys(("optimizer", "cluster", "model", "data")),
    "schedule": Schedule,
    "engine": EngineOptions,
    "budget": Budget,
    "eval": Evaluation,
    "target": Target,
    "wandb": WandbOptions,
    "tensorboard": TensorboardOptions,
    "mlflow": MlflowOptions,
}


def configure(values: Mapping[str, Any]) -> RunConfig:
    """Check a configuration and return it typed. Loads and writes nothing.

    values: the resolved configuration as plain values; each group may have the `name` of its choice. `resume_trusted`
    says how a command goes about it and is no part of the run. Raises ConfigError."""
    values = {key: value for key, value in values.items() if key != TRUSTED}
    for key in [*KEYS, *values]:
        if key not in values:
            raise ConfigError(f"{key} must be given, got nothing")
        if key not in KEYS:
            raise ConfigError(f"{key} is not a key of the configuration; it has {', '.join(KEYS)}")
    nodes, batch_size, seed = (checked(values[key], int, key) for key in ("nodes", "batch_size", "seed"))
    for key, value, least in (("nodes", nodes, 1), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        if value < least:
            raise ConfigError(f"{key} must be >= {least}, got {value}")
    if nodes > MOST_NODES:
        raise ConfigError(f"nodes must be <= {MOST_NODES}, got {nodes}")
    if (precision := values["precision"]) not in PRECISIONS:
        raise ConfigError(f"precision must be one of {', '.join(PRECISIONS)}, got {shown(precision)}")
    parts = {group: build(cls, values[group], group) for group, cls in PARTS.items()}
    with prefixed(None):
        track = checked(values["track"], list[str], "track")
        wandb, *others = (parts.pop(name) for name in ("wandb", "tensorboard", "mlflow"))
        trackers = chosen(track, wandb, *others)
    engine, cluster, model, data = parts.pop("engine"), parts["cluster"], parts["model"], parts["data"]

    with prefixed("cluster"):
        cluster.check(nodes)
    with prefixed(None):
        model.check(data.input_shape, data.classes)
        if engine.gradients != "none":  # without gradients no data are drawn, and any number of nodes is fine
            data.check(nodes, batch_size)
    topology_config = build(None, values["topology"], "topology")
    with prefixed("topology", fields=topology_config):
        topology = topology_config.build(nodes, seed)
    algo = build(None, values["algo"], "algo", topology=topology, seed=seed)
    parts |= {key: checked(values[key], bool, key) for key in ("channels_last", "compile", "trace")}
    parts |= {"algo": algo, "topology": topology, "gradients": engine.gradients, "device": engine.device}
    with prefixed(None):
        experiment = Experiment(nodes=nodes, batch_size=batch_size, seed=seed, precision=precision, **parts)
    with prefixed("algo", fields=algo):
        algo.check(nodes, experiment.peak_lr, experiment.optimizer.momentum)
    if algo.needs_sgd and not isinstance(experiment.optimizer, SGD):
        given = type(experiment.optimizer).__name__.lower()
        raise ConfigError(f"optimizer must be sgd with {algo.needs_sgd}, got {given}")
    return RunConfig(experiment, engine, wandb, trackers, values)
