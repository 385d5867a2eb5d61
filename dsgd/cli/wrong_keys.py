"""Suggest the meaning of a key or a method that does not exist: near names, other names, another command."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, ListConfig, OmegaConf

from dsgd.report.labels import did_you_mean
from dsgd.runner.values import withdrawal

# groups of keys that other commands take
ELSEWHERE = {"compare": "dsgd-compare", "slurm": "dsgd-sweep submit, and dsgd-compare compare.on=slurm"}


def method_elsewhere(word: str) -> str | None:
    """Return the choice for the method of this name, like `compressed algo.code=powersgd`, or None."""
    return names_elsewhere()["methods"].get("".join(letter for letter in word.lower() if letter.isalnum()))


def option_elsewhere(word: str, known: Sequence[str]) -> str | None:
    """Return the known option that is called `word` elsewhere, or None."""
    return next((name for name in names_elsewhere()["options"].get(word, ()) if name in known), None)


@cache
def names_elsewhere() -> dict[str, dict[str, Any]]:
    """Return the names of methods and options elsewhere: names_elsewhere.yaml."""
    return yaml.safe_load(files("dsgd.cli").joinpath("names_elsewhere.yaml").read_text(encoding="utf-8"))


def unknown_key(key: str, config: DictConfig) -> str:
    """Return an error text for a key that does not exist, with near names: first of the same group, then anywhere."""
    if line := withdrawal(key, config.hydra.runtime.choices.get("algo")):
        return line
    if commands := ELSEWHERE.get(key.partition(".")[0]):
        return f"{key} is not a key of a run: it belongs to {commands}"
    parent, _, leaf = key.rpartition(".")
    beside = OmegaConf.select(config, parent) if parent else None
    siblings = [str(name) for name in beside if name != "_target_"] if isinstance(beside, DictConfig) else []
    named = option_elsewhere(leaf, siblings) if parent == "algo" else None
    near = [f"{parent}.{name}" for name in ([named] if named else difflib.get_close_matches(leaf, siblings))]
    if near or not siblings:
        keys = [name for name in _flat_keys(OmegaConf.to_container(config)) if not name.startswith("hydra")]
        same_leaf = [name for name in keys if name.rpartition(".")[2] == leaf]
        near = near or same_leaf or difflib.get_close_matches(key, keys)
        return f"{key} is not a key of the configuration{did_you_mean(near)}"
    choice = config.hydra.runtime.choices.get(parent)
    group = f"{parent}={choice}" if choice else parent
    return f"{key} is not a key of the configuration; {group} has {', '.join(siblings)}"


def unknown_choice(group: str, choice: str, known: Sequence[str]) -> str:
    """Return an error text for a choice that a group does not have."""
    if line := withdrawal(f"{group}={choice}"):
        return line
    named = method_elsewhere(choice) if group == "algo" else None
    hint = f"; that is algo={named} here" if named else suggestion(choice, known)
    return f"{group} must be one of {', '.join(known)}, got {choice!r}{hint}"


def without_value(text: str, choices: Mapping[str, Sequence[str]]) -> str:
    """Return the error for a word without `=`, with the group that has it as a choice; empty for other words."""
    if not re.fullmatch(r"[\w./@-]+", text):
        return ""
    groups = [group for group, names in choices.items() if text in names]
    way = did_you_mean([f"{group}={text}" for group in groups]) or f"; as in {text}=VALUE"
    return f"an override must be key=value, got {text}{way}"


def misplaced(parsed: Sequence[Override], whole: DictConfig) -> str | None:
    """Return an error text for the first override of a key that a configuration lacks, or that adds one that it has."""
    added = [item.key_or_group for item in parsed if item.is_add() or item.is_force_add()]
    for override in parsed:
        key = override.key_or_group if override.package is None else f"{override.key_or_group}@{override.package}"
        exists = key in whole.hydra.runtime.choices or _has_key(whole, key)
        if override.is_add() and exists and not isinstance(override.value(), dict | list):
            return f"{key} must be given without +, as it is there already, got {override.input_line}"
        if any(key == other or key.startswith(f"{other}.") for other in added):
            continue
        inner = override.value() if exists and override.type is OverrideType.CHANGE else None
        names = [f"{key}.{name}" for name in inner] if isinstance(inner, dict) else []
        for name in names if exists else [key]:
            if not _has_key(whole, name):
                return unknown_key(name, whole)
    return None


def suggestion(word: str, known: Sequence[str], prefix: str = "") -> str:
    """Return a question with the known names near to a word, each behind a prefix; empty without one."""
    return did_you_mean([prefix + name for name in difflib.get_close_matches(word, known)])


def _flat_keys(values: Any, prefix: str = "") -> list[str]:
    if not isinstance(values, Mapping):
        return []
    keys = [[prefix + key, *_flat_keys(value, f"{prefix}{key}.")] for key, value in values.items() if key != "_target_"]
    return list(itertools.chain(*keys))


def _has_key(config: DictConfig, key: str) -> bool:
    """Return whether a configuration has a dotted key, with or without a value."""
    parent, _, leaf = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    if isinstance(node, ListConfig):
        return leaf.isdecimal() and int(leaf) < len(node)
    return isinstance(node, DictConfig) and leaf in map(str, node.keys())
