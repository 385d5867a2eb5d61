"""Refuse to run code that a checkpoint names and its user does not. Does not import torch.

A configuration is code: `_target_` names a class to import, `model.target` and `data.target` a function to call. A
command line may name any; a checkpoint, which a stranger may have written, only what the package offers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from dsgd.runner.values import CHOSEN, ConfigError, checked, shown, with_numbers
from dsgd.runner.withdrawn import MOVED

TRUSTED = "resume_trusted"
CALL = ("target", "arguments")  # of model=import and data=import


def check_code(stored: Mapping[str, Any], given: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError for a stored configuration that leads to an import, unless the given one leads to the same with
    the same arguments, or says that the stored one is trusted. where: the stored one is."""
    if checked(given.get(TRUSTED, False), bool, TRUSTED):
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
    """Return by group what a configuration runs that the package does not offer: a class and its options, or a function
    and its arguments."""
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
    """Return the class that each choice of a configuration group names; none for a key that is no group."""
    if group not in CHOSEN:  # a stranger's key, which may be a path
        return {}
    choices = [path for path in (files("dsgd.conf") / group).iterdir() if path.name.endswith(".yaml")]
    texts = {path.name.removesuffix(".yaml"): path.read_text(encoding="utf-8") for path in choices}
    targets = {name: re.search(r"^_target_: (\S+)$", text, re.M) for name, text in texts.items()}
    return {name: target[1] for name, target in sorted(targets.items()) if target is not None}
