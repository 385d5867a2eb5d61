"""From plain values to checked dataclasses, with errors of one line. Does not import torch.

Withdrawn keys, choices and flags, and classes that have moved, are listed for one release, and their errors say what to
use instead.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dsgd.host.signals import Interrupted
from dsgd.models import first_line, hint, imported

OWN_TOPOLOGY = "a class of your own with build(nodes, seed), as _target_ in topology/NAME.yaml below --config-dir"
# key: its former default, which a stored configuration may have, and what to use instead. An option of one algorithm
# follows its name, as "algo=gossip algo.peers"; a choice of a group has no default
WITHDRAWN: dict[str, tuple[Any, str]] = {
    "topology=file": (None, f"name {OWN_TOPOLOGY}"),
    "topology=random_regular": (None, f"topology=hypercube or torus has as few neighbours, or name {OWN_TOPOLOGY}"),
    "algo=gossip algo.peers": ("uniform", "a peer is any other worker; algo=adpsgd algo.peers=topology has a graph"),
    "algo=adpsgd algo.tau": (1, "an average begins with every gradient; algo=gossip algo.tau averages less often"),
    "algo=easgd algo.average": (False, "the output model is the centre"),
    "algo=asyncdiloco algo.servers": (1, "the global server is on one node, whose rate is cluster.server_bandwidth"),
    "algo=downpour algo.server_nesterov": (False, "algo.server_optimizer=momentum is heavy ball"),
    "algo=downpour algo.adagrad_eps": (1e-8, "algo.server_optimizer=adagrad adds 1e-8 to its sum of squares"),
    **{
        f"algo={name} algo.seed": (None, "seed, the key of the run, seeds it as well")
        for name in ("choco", "compressed", "noloco", "sparta")
    },
    "schedule.final": (0.0, "the cosine ends at 0"),
    "data.seed": (0, "generated data are the same in every run; seed orders them"),
    "topology.rows": (None, "the torus is as square as the number of nodes allows; topology=ring has one row"),
    "engine.restarts": (0, "the others continue without a dead worker; resume=FOLDER begins with all of them again"),
    "eval.sharded": (None, "the coordinator evaluates; eval.every_epochs and eval.every_steps set how often"),
}

# the former import path of a class that stored configurations and files of users name
MOVED = {
    "dsgd.optimizer.SGD": "dsgd.optim.optimizer.SGD",
    "dsgd.optimizer.AdamW": "dsgd.optim.optimizer.AdamW",
    "dsgd.muon.Muon": "dsgd.optim.muon.Muon",
    "dsgd.schedule.Schedule": "dsgd.optim.schedule.Schedule",
}

# {flag of dsgd-run: what to use instead}
FLAGS = {
    "--hydra-help": "--help names every flag and key",
    "--info": "--cfg job prints what is composed",
    "-i": "--cfg job prints what is composed",
    "--package": "--cfg job prints the whole configuration",
    "-p": "--cfg job prints the whole configuration",
    "--run": "without -m a command line is one run",
    "-r": "without -m a command line is one run",
    "--config-path": "--config-dir adds a folder",
    "-cp": "--config-dir adds a folder",
    "--experimental-rerun": "resume=FOLDER resumes a run",
}
NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a word", type(None): "null"}
LARGEST = 2**63  # integers are kept in 64 bits, with their sign
NAME_BYTES, PATH_BYTES = 255, 4000  # as file systems have it, with room for the names of the files in a folder
SHOWN = 100  # characters of a value in an error
SHORT_NUMBER = re.compile("[0-9]{1,18}")
# groups with a chosen file: each has the `name` of its choice
CHOSEN = ("algo", "model", "data", "optimizer", "schedule", "cluster", "topology", "engine")


_hints = functools.cache(typing.get_type_hints)  # a sweep builds the same few classes for every job


def entry(key: str, algorithm: str | None = None) -> str | None:
    """Return the name of a key in WITHDRAWN, or None. algorithm: name of the configured algorithm."""
    names = (key, f"algo={algorithm} {key}")
    return next((name for name in names if name in WITHDRAWN), None)


def withdrawal(key: str, algorithm: str | None = None) -> str | None:
    """Return the error text for a withdrawn key or choice; None for any other. algorithm: name of the algorithm."""
    name = entry(key, algorithm)
    return f"{name} is withdrawn: {WITHDRAWN[name][1]}" if name else None


class ConfigError(ValueError):
    """A wrong configuration: one line with the key, the expected value and the given value."""


def build(cls: Any, values: Mapping[str, Any], group: str, **given: Any) -> Any:
    """Return an instance of a dataclass from the values of a configuration group, checked against its annotations.

    cls: the class, or None for the one named by `_target_`. given: fields that the user does not choose; passed to
    classes with such a field. Raises ConfigError."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{group} must be a group of keys, got {shown(values)}")
    if cls is None:
        choice = f"{group}={values.get('name')}"
        if choice in WITHDRAWN and str(values.get("_target_")).startswith("dsgd."):
            raise ConfigError(withdrawal(choice))
        cls = locate(values.get("_target_"), group)
    elif "_target_" in values and MOVED.get(target := str(values["_target_"]), target) != (
        path := f"{cls.__module__}.{cls.__qualname__}"
    ):
        raise ConfigError(f"{group}._target_ must be {path} or not given, got {shown(values['_target_'])}")
    hints = _hints(cls)
    fields = {field.name for field in dataclasses.fields(cls) if field.init}
    arguments = {name: value for name, value in given.items() if name in fields}
    algorithm = cls.__module__.rpartition(".")[2] if group == "algo" else None
    for key, value in values.items():
        if key == "_target_" or (key == "name" and group in CHOSEN and key not in fields):
            continue
        if (key not in fields or key in given) and (name := entry(f"{group}.{key}", algorithm)):
            if value == given.get(key, WITHDRAWN[name][0]):  # in a stored configuration
                continue
            raise ConfigError(withdrawal(f"{group}.{key}", algorithm))
        if key not in fields:
            raise ConfigError(f"{group}.{key} is not a key of {cls.__name__}; it has {', '.join(sorted(fields))}")
        arguments[key] = convert(value, hints[key], f"{group}.{key}")
    for field in dataclasses.fields(cls):
        if field.init and field.name not in arguments and field.default is field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{group}.{field.name} must be given, got nothing")
    with key_prefix(group):
        return cls(**arguments)


def locate(path: Any, group: str) -> Any:
    """Import the dataclass that `_target_` names. Raises ConfigError."""
    target, reason = None, ""
    module, _, name = MOVED.get(str(path), str(path)).rpartition(".")
    try:
        target = getattr(imported(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        reason = f" ({error}{hint(error)})"
    if not (isinstance(target, type) and dataclasses.is_dataclass(target)):
        raise ConfigError(f"{group}._target_ must be the import path of a dataclass, got {shown(path)}{reason}")
    return target


def convert(value: Any, hint: Any, key: str) -> Any:
    """Return the value as the annotated type; an integer serves as a number, 1e6 as an integer. Raises ConfigError."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = typing.get_args(hint)
        if value is None and type(None) in options:
            return None
        choices = [option for option in options if option is not type(None)]
        return convert(value, str if isinstance(value, str) and str in choices else choices[0], key)
    if origin is list:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{key} must be a list, got {shown(value)}")
        return [convert(item, typing.get_args(hint)[0], f"{key}[{index}]") for index, item in enumerate(value)]
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key} must be a mapping like {{3: 2.0}}, got {shown(value)}")
        of_key, of_value = typing.get_args(hint)
        if of_key is int:
            value = with_numbers(value)
        return {convert(k, of_key, f"{key}: every key"): convert(v, of_value, f"{key}[{k}]") for k, v in value.items()}
    if hint is Any:
        return value
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and isinstance(value, int) and abs(value) >= LARGEST:
        raise ConfigError(f"{key} must be {'< 2^63' if value > 0 else '> -2^63'}, got {shown(value)}")
    if hint is float and number:
        return float(value)
    if hint is int and number and float(value).is_integer():
        return convert(int(value), int, key) if isinstance(value, float) else value
    if hint in (bool, str) and isinstance(value, hint):
        longest = max(len(os.fsencode(name)) for name in value.split("/")) if isinstance(value, str) else 0
        if isinstance(value, str) and (len(value) > PATH_BYTES or "\0" in value or longest > NAME_BYTES):
            rule = f"a word of at most {NAME_BYTES} bytes, or a path of such words of at most {PATH_BYTES}"
            raise ConfigError(f"{key} must be {rule}, got {shown(value)}")
        return value
    raise ConfigError(f"{key} must be {NAMES.get(hint, hint)}, got {shown(value)}")


def with_numbers(value: Any) -> Any:
    """Turn keys like "3" into numbers, at every level: JSON and the command line have {3: 2.0} as {"3": 2.0}."""
    if not isinstance(value, Mapping):
        return value
    return {
        int(key) if isinstance(key, str) and SHORT_NUMBER.fullmatch(key) else key: with_numbers(inner)
        for key, inner in value.items()
    }


def value_at(values: Any, key: str, missing: Any = None) -> Any:
    """Return the value of a dotted key, or `missing`."""
    for part in key.split("."):
        if not isinstance(values, Mapping):
            return missing
        values = values.get(part, values.get(int(part), missing) if part.isdecimal() else missing)
    return values


def shown(value: Any) -> str:
    """Return a value in a form that fits into one line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # more digits than Python prints, or deeper than it goes
        return f"a very long {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


@contextmanager
def key_prefix(group: str | None, fields: Any = None) -> Iterator[None]:
    """Turn a ValueError raised inside into a ConfigError whose text begins with the group.

    group: None if the texts name whole keys already. fields: a dataclass; then texts that begin with one of its fields
    get the prefix, no others."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        text = str(error)
        names = {field.name for field in dataclasses.fields(fields)} if dataclasses.is_dataclass(fields) else None
        names_key = names is None or text.split(maxsplit=1)[0].partition("=")[0].rstrip(":") in names
        raise ConfigError(f"{group}.{text}" if group and names_key else text) from error


@contextmanager
def ends_are_errors() -> Iterator[None]:
    """Turn exceptions of a user's code that would end this process, except signals, into a ConfigError."""
    try:
        yield
    except Interrupted:
        raise
    except (SystemExit, KeyboardInterrupt) as end:
        raise ConfigError(f"model and data must not end the process, got {first_line(end)}") from end
