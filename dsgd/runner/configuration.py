"""One run as configured: types, ranges, combinations, and references to code. Does not import torch.

`_target_` names a class to import, `model.target` and `data.target` a function to call. A command line may name any. A
checkpoint, which a stranger may have written, may only name the package's own, unless its user names the same."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from dsgd.experiment import Budget, Evaluation, Experiment, Target
from dsgd.keys import check_options
from dsgd.optim.optimizer import SGD
from dsgd.optim.schedule import Schedule
from dsgd.record.trackers import MlflowOptions, TensorboardOptions, WandbOptions, chosen
from dsgd.runner.values import CHOSEN, MOVED, ConfigError, build, convert, key_prefix, shown, with_numbers
from dsgd.topology import Topology
from dsgd.worker import Algorithm

TRUSTED = "resume_trusted"
CALL = ("target", "arguments")  # of model=import and data=import
CHOICES = {  # of `engine.*`
    "name": ("auto", "sim", "dist", "torch"),
    "gradients": ("auto", "compiled", "loop", "graphs", "none"),
    "transport": ("auto", "tcp"),
    "collectives": ("own", "torch"),
}
PRECISIONS = ("fp32", "fp64", "tf32", "bf16", "fp16")
MOST_THREADS = 1024  # which torch starts at once: more than any machine has cores
MOST_NODES = 2**14  # workers: their mixing matrix takes 2 GB
KEYS = ("nodes", "batch_size", "seed", "precision", "channels_last", "compile", "trace", "resume")
KEYS += (*CHOSEN, "budget", "eval", "target", "track", "wandb", "tensorboard", "mlflow")
DEFAULT, TREES = "ring", {"relay": "chain"}  # topologies: the default, and of algorithms that choose another


def why_not(algo: Algorithm) -> str | None:
    """Return the reason why an algorithm cannot run over process groups, or None."""
    if algo.servers:
        return "its workers ask a parameter server, each when it gets there"
    if not algo.lockstep:
        return "its workers do not keep step, and reach peers in the midst of a gradient"
    if algo.backups:
        return "a step goes on without the gradients that are late"
    return None


def check_code(stored: Mapping[str, Any], given: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError for a stored configuration that imports code, unless the given one imports the same with the
    same arguments, or trusts the stored one. where: place of the stored one."""
    if convert(given.get(TRUSTED, False), bool, TRUSTED):
        return
    ours = code_of(given)
    for group, code in code_of(stored).items():
        for key, value in code.items():
            if group not in ours or value != ours[group].get(key):
                rule = f"{group}.{key} must be typed as {where}, {shown(value)}, or {TRUSTED}=true"
                other = ours.get(group, {}).get(key)
                got = "nothing" if other in (None, {}) else shown(other)
                raise ConfigError(f"{rule}, since dsgd does not offer that code, got {got}")


def code_of(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return {group: code outside of the package that a configuration runs}: a class and its options, or a function and
    its arguments."""
    code: dict[str, dict[str, Any]] = {}
    for group, values in config.items():
        if not isinstance(values, Mapping) or "_target_" not in values:
            continue
        target = values["_target_"]
        if not isinstance(target, str) or MOVED.get(target, target) not in offered(group).values():
            options = {key: with_numbers(value) for key, value in values.items() if key != "name"}
            code[group] = {"_target_": target, **options}
        elif "target" in values:
            code[group] = {key: with_numbers(values.get(key) or {}) for key in CALL}
    return code


@functools.cache
def offered(group: str) -> Mapping[str, str]:
    """Return the class that each choice of a configuration group names; empty for a key that is not a group."""
    if group not in CHOSEN:  # a stranger's key, which may be a path
        return {}
    choices = [path for path in (files("dsgd.conf") / group).iterdir() if path.name.endswith(".yaml")]
    texts = {path.name.removesuffix(".yaml"): path.read_text(encoding="utf-8") for path in choices}
    targets = {name: re.search(r"^_target_: (\S+)$", text, re.M) for name, text in texts.items()}
    return {name: target[1] for name, target in sorted(targets.items()) if target is not None}


@dataclass(frozen=True)
class EngineOptions:
    """Options of `engine.*`, which change no result of the simulator but for the last bits. The last six are for
    engine=dist, timeout_s and gpus_per_node also for engine=torch. Checkpoints are for all engines."""

    name: str = "auto"  # auto | sim | dist | torch
    gradients: str = "auto"  # auto | compiled | loop | graphs | none: timing only
    device: str = "auto"  # auto | cpu | accelerator | one of torch's types, such as cuda
    threads: int | None = None  # cores for gradients side by side; null: `dsgd.gradients.choice` decides
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
        if not re.fullmatch("[a-z][a-z0-9_]*", self.device):
            expected = "auto, cpu, accelerator, or one of torch's types, such as cuda"
            raise ValueError(f"device must be {expected}, got {shown(self.device)}")
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
    """Options of `sweep.*`, which are no part of any run. jobs: auto, or the number of parallel jobs of a sweep."""

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
    """One run as configured. trackers: {name: seconds that the run waits for it at its end}. values: the same as plain
    values, as in `config.yaml`."""

    experiment: Experiment
    engine: EngineOptions
    trackers: Mapping[str, float]
    values: Mapping[str, Any]


# groups of keys, each with the class of its options; None: the class that it names. Topology and algorithm need more
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
    is an option of the command, not of the run. Raises ConfigError."""
    values = {key: value for key, value in values.items() if key != TRUSTED}
    for key in [*KEYS, *values]:
        if key not in values:
            raise ConfigError(f"{key} must be given, got nothing")
        if key not in KEYS:
            raise ConfigError(f"{key} is not a key of the configuration; it has {', '.join(KEYS)}")
    nodes, batch_size, seed = (convert(values[key], int, key) for key in ("nodes", "batch_size", "seed"))
    for key, value, least in (("nodes", nodes, 1), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        if value < least:
            raise ConfigError(f"{key} must be >= {least}, got {value}")
    if nodes > MOST_NODES:
        raise ConfigError(f"nodes must be <= {MOST_NODES}, got {nodes}")
    if (precision := values["precision"]) not in PRECISIONS:
        raise ConfigError(f"precision must be one of {', '.join(PRECISIONS)}, got {shown(precision)}")
    parts = {group: build(cls, values[group], group) for group, cls in PARTS.items()}
    with key_prefix(None):
        track = convert(values["track"], list[str], "track")
        trackers = chosen(track, parts.pop("wandb"), parts.pop("tensorboard"), parts.pop("mlflow"))
    engine, cluster, model, data = parts.pop("engine"), parts["cluster"], parts["model"], parts["data"]

    with key_prefix("cluster"):
        cluster.check(nodes)
    with key_prefix(None):
        model.check(data.input_shape, data.classes)
        if engine.gradients != "none":  # without gradients no data are drawn, and any number of nodes is fine
            data.check(nodes, batch_size)
    topology_config = build(None, values["topology"], "topology")
    with key_prefix("topology", fields=topology_config):
        topology = topology_config.build(nodes, seed)
    algo = build(None, values["algo"], "algo", topology=topology, seed=seed)
    parts |= {key: convert(values[key], bool, key) for key in ("channels_last", "compile", "trace")}
    parts |= {"algo": algo, "topology": topology, "gradients": engine.gradients, "device": engine.device}
    with key_prefix(None):
        experiment = Experiment(nodes=nodes, batch_size=batch_size, seed=seed, precision=precision, **parts)
    with key_prefix("algo", fields=algo):
        algo.check(nodes, experiment.peak_lr, experiment.optimizer.momentum)
    if algo.needs_sgd and not isinstance(experiment.optimizer, SGD):
        given = type(experiment.optimizer).__name__.lower()
        raise ConfigError(f"optimizer must be sgd with {algo.needs_sgd}, got {given}")
    return RunConfig(experiment, engine, trackers, values)


def named_algorithm(
    name: str, options: Mapping[str, Any], topology: str | Mapping[str, Any] | None, nodes: int, seed: int
) -> Algorithm:
    """Return the algorithm that `algo=<name>` chooses, with these options. Raises ConfigError.

    topology: name of a topology, or its keys with `name`; None: ring, for relay chain. seed: seed of random numbers
    that all workers share."""
    given = {"name": topology or TREES.get(name, DEFAULT)} if isinstance(topology, str | None) else dict(topology)
    shape = _build("topology", given.pop("name", DEFAULT), given)
    graph: Topology = shape.build(nodes, seed)
    algo = _build("algo", name, options, topology=graph, seed=seed)
    if reason := why_not(algo):
        raise ConfigError(f"algo={name} needs engine=dist, real processes of dsgd-run: {reason}")
    return algo


def _build(group: str, name: str, options: Mapping[str, Any], **given: Any) -> Any:
    """Return an instance of the class that a choice of the package names. given: fields that are no options."""
    targets = offered(group)
    if name not in targets:
        near = difflib.get_close_matches(name.lower(), targets, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{group} must be one of {', '.join(targets)}, got {name!r}{meant}")
    return build(None, {"_target_": targets[name], **options}, group, **given)
