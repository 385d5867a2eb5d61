"""From a resolved configuration to an `Experiment`: types, ranges, and what fits together. Does not import torch."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsgd.experiment import Budget, Evaluation, Experiment, Target
from dsgd.optimizer import SGD
from dsgd.record.mirror import MirrorOptions
from dsgd.schedule import Schedule

NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a word", type(None): "null"}
GRADIENTS = ("stacked", "vmap", "loop", "none")
DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("fp32", "fp64", "tf32", "bf16", "fp16")
KEYS = ("nodes", "batch_size", "seed", "precision", "channels_last", "compile", "trace", "resume")
KEYS += ("algo", "model", "data", "optimizer", "schedule", "cluster", "topology", "engine")
KEYS += ("budget", "eval", "target", "wandb")


class ConfigError(ValueError):
    """Something in the configuration is wrong: one line with the key, what was expected and what was given."""


@dataclass(frozen=True)
class EngineOptions:
    """`engine.*`: nothing here changes a result of the simulator, but for the last bits. The later ones are of
    engine=dist."""

    gradients: str = "stacked"  # stacked | vmap | loop | none: timing only
    stack_size: int | None = None  # most models in one call
    device: str = "auto"  # auto | cpu | cuda
    threads: int | None = None  # of the arithmetic; null: OMP_NUM_THREADS, or the cores it may use
    checkpoint_every_s: float | None = None  # of host time
    timeout_s: float = 60.0
    patience_s: float = 2.0
    gpus_per_node: int | None = None
    restarts: int = 0

    def __post_init__(self) -> None:
        one_of(self.gradients, GRADIENTS, "gradients")
        one_of(self.device, DEVICES, "device")
        for name in ("threads", "stack_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        if self.checkpoint_every_s is not None and not self.checkpoint_every_s > 0:
            raise ValueError(f"checkpoint_every_s must be > 0 or null, got {self.checkpoint_every_s}")
        if not 1 <= self.timeout_s <= 86400:
            raise ValueError(f"timeout_s must be in [1, 86400], got {self.timeout_s}")
        if not 0 < self.patience_s <= self.timeout_s:
            raise ValueError(f"patience_s must be in (0, timeout_s = {self.timeout_s:g}], got {self.patience_s}")
        for name in ("gpus_per_node", "restarts"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} must be >= 0, got {value}")


def build_experiment(config: Mapping[str, Any]) -> Experiment:
    """config: the resolved configuration as plain values. Raises ConfigError. Nothing is loaded or written."""
    for key in [*KEYS, *config]:
        if key not in config:
            raise ConfigError(f"{key} must be given, got nothing")
        if key not in KEYS:
            raise ConfigError(f"{key} is not a key of the configuration; it has {', '.join(KEYS)}")
    nodes, batch_size, seed = (checked(config[key], int, key) for key in ("nodes", "batch_size", "seed"))
    for key, value, least in (("nodes", nodes, 1), ("batch_size", batch_size, 1), ("seed", seed, 0)):
        if value < least:
            raise ConfigError(f"{key} must be >= {least}, got {value}")
    if seed >= 2**63:
        raise ConfigError(f"seed must be < 2^63, got {seed}")
    with prefixed(None):
        precision = one_of(config["precision"], PRECISIONS, "precision")
    optimizer = build(SGD, config["optimizer"], "optimizer")
    schedule = build(Schedule, config["schedule"], "schedule")
    engine = build(EngineOptions, config["engine"], "engine")
    budget = build(Budget, config["budget"], "budget")
    evaluation = build(Evaluation, config["eval"], "eval")
    target = build(Target, config["target"], "target")
    build(MirrorOptions, config["wandb"], "wandb")
    cluster = build(None, config["cluster"], "cluster")
    model = build(None, config["model"], "model")
    data = build(None, config["data"], "data")

    with prefixed("cluster"):
        cluster.check(nodes)
    with prefixed(None):
        model.check(data.input_shape, data.classes)
        if engine.gradients != "none":  # without gradients no data are drawn, and any number of nodes is fine
            data.check(nodes, batch_size)
    topology_config = build(None, config["topology"], "topology")
    with prefixed("topology", fields=topology_config):
        topology = topology_config.build(nodes, seed)
    algo = build(None, config["algo"], "algo", topology=topology)
    with prefixed(None):
        experiment = Experiment(
            nodes=nodes,
            batch_size=batch_size,
            seed=seed,
            precision=precision,
            algo=algo,
            model=model,
            data=data,
            optimizer=optimizer,
            schedule=schedule,
            cluster=cluster,
            topology=topology,
            budget=budget,
            eval=evaluation,
            target=target,
            gradients=engine.gradients,
            stack_size=engine.stack_size,
            device=engine.device,
            channels_last=checked(config["channels_last"], bool, "channels_last"),
            compile=checked(config["compile"], bool, "compile"),
            trace=checked(config["trace"], bool, "trace"),
        )
    with prefixed("algo"):
        algo.check(nodes, experiment.peak_lr, optimizer.momentum)
    return experiment


def build(cls: Any, values: Mapping[str, Any], group: str, **given: Any) -> Any:
    """An instance of a dataclass from the values of a configuration group, checked against its annotations.

    cls: the class, or None for the one named by `_target_`. given: fields that are not the user's to choose; a class
    that has no such field does not get it. Raises ConfigError."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{group} must be a group of keys, got {values!r}")
    cls = cls or locate(values.get("_target_"), group)
    hints = _hints(cls)
    fields = {field.name for field in dataclasses.fields(cls) if field.init}
    arguments = {name: value for name, value in given.items() if name in fields}
    for key, value in values.items():
        if key == "_target_" or (key == "name" and key not in fields):
            continue
        if key not in fields:
            raise ConfigError(f"{group}.{key} is not a key of {cls.__name__}; it has {', '.join(sorted(fields))}")
        arguments[key] = checked(value, hints[key], f"{group}.{key}")
    for field in dataclasses.fields(cls):
        if field.init and field.name not in arguments and field.default is field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{group}.{field.name} must be given, got nothing")
    with prefixed(group):
        return cls(**arguments)


@functools.cache  # a sweep builds the same few classes for every job
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def locate(path: Any, group: str) -> Any:
    """The dataclass that `_target_` names."""
    rule = f"{group}._target_ must be the import path of a dataclass, got {path!r}"
    module, _, name = str(path).rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{rule} ({error})") from error
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise ConfigError(rule)
    return found


def one_of(value: Any, choices: tuple[str, ...], key: str) -> str:
    if value not in choices:
        raise ValueError(f"{key} must be one of {', '.join(choices)}, got {value!r}")
    return value


def checked(value: Any, hint: Any, key: str) -> Any:
    """The value as the annotated type; an integer serves as a number, 1e6 as an integer. Raises ConfigError."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if value is None and type(None) in options:
            return None
        rest = [option for option in options if option is not type(None)]
        return checked(value, rest[0], key)
    if origin is list:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{key} must be a list, got {value!r}")
        return [checked(item, typing.get_args(hint)[0], f"{key}[{index}]") for index, item in enumerate(value)]
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key} must be a mapping like {{3: 2.0}}, got {value!r}")
        of_key, of_value = typing.get_args(hint)
        return {checked(k, of_key, f"{key}: every key"): checked(v, of_value, f"{key}[{k}]") for k, v in value.items()}
    if hint is Any:
        return value
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is float and number:
        return float(value)
    if hint is int and number and float(value).is_integer():
        return int(value)
    if hint in (bool, str) and isinstance(value, hint):
        return value
    raise ConfigError(f"{key} must be {NAMES.get(hint, hint)}, got {value!r}")


class prefixed:
    """Turns a ValueError raised inside into a ConfigError whose text begins with the group, where it is about its
    fields.

    group: None if the texts name whole keys already. fields: only texts that begin with a field of this object get the
    prefix."""

    def __init__(self, group: str | None, fields: Any = None) -> None:
        self.group = group
        self.fields = fields

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, ValueError) and not isinstance(error, ConfigError):
            text = str(error)
            names = None if self.fields is None else {field.name for field in dataclasses.fields(self.fields)}
            own = names is None or text.split(maxsplit=1)[0].rstrip(":") in names
            raise ConfigError(f"{self.group}.{text}" if self.group and own else text) from error
