"""Find the words and the default of each configuration key, for captions and axes: its dataclass field, and conf/."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pkgutil import resolve_name
from typing import Any

import yaml

from dsgd.experiment import Budget, Experiment
from dsgd.keys import Key, keys_of

# the files whose defaults no caption says and whose classes declare keys; of a key in two of them the first counts
_FILES = ("cluster/gigabit", "data/import", "optimizer/sgd", "optimizer/adamw", "schedule/cosine")
# default and declaration of keys that only older records have
_EARLIER = {"data.seed": (0, Key()), "schedule.final": (0, Key("down to {}", unit="%"))}


@cache
def key_table() -> Mapping[str, Key]:
    """Return the declaration of each dotted key. A caption lists the keys of a group in this order."""
    table: dict[str, Key] = {}
    for group, cls in [("", Experiment), ("budget.", Budget), *map(_class_in, _FILES)]:
        for name, key in keys_of(cls).items():
            table.setdefault(f"{group}{name}", key)
            entries = keys_of(key.entry) if key.entry else {}
            table |= {f"{group}{name}.{inner}": declared for inner, declared in entries.items()}
    return table | {key: declared for key, (_, declared) in _EARLIER.items()}


@cache
def usual() -> Mapping[str, Any]:
    """Return the defaults of keys in conf/, which a caption omits."""
    values = {key: default for key, (default, _) in _EARLIER.items()}
    values |= {"topology.name": "ring", "precision": _configured("config.yaml")["precision"]}
    for file in _FILES:
        group = file.partition("/")[0]
        values = {f"{group}.{name}": value for name, value in _configured(f"{file}.yaml").items()} | values
    return values


@cache
def usual_of_data(name: str) -> Mapping[str, Any]:
    """Return the defaults of a data set, which a caption omits: its file in conf/; empty for a user's data."""
    known = {path.name for path in files("dsgd.conf").joinpath("data").iterdir()}
    return _configured(f"data/{name}.yaml") if f"{name}.yaml" in known else {}


def _class_in(file: str) -> tuple[str, type]:
    """Return the beginning of the keys of a file in conf/, and the class that the file names."""
    return f"{file.partition('/')[0]}.", resolve_name(_configured(f"{file}.yaml")["_target_"])


@cache
def _configured(file: str) -> dict[str, Any]:
    return yaml.safe_load(files("dsgd.conf").joinpath(file).read_text(encoding="utf-8"))
