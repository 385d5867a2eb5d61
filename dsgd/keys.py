"""Declare configuration keys as fields of dataclasses, with words and limits, and check their values.

    wan_latency_s: Annotated[float | None, Key("{} latency between islands", "in [0, 1e9]")] = None

conf/ has the default of a key and its effect; help, errors, units, captions and the reference page follow from the two
lines. Rules are written as an error says them: `>= 1`, `in [0, 1)`.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Key:
    """Declare the words, the rule and the unit of a key.

    caption: text for a value that is not the default; empty: no caption mentions the key. `{}` is the value in the
    key's unit; a format after a colon is one of format(), or a name of WRITTEN in dsgd/report/setting.py. Captions list
    the keys of a class in the order of its fields.
    rule: demand of `check_options` on a value that is not null; empty: none.
    axis: name of the key on an axis; by default the last part of its name. of_node: the same for the entry of a node.
    unit: "%" for a share; other units follow from the end of the name, as dsgd/report/units.py reads it.
    entry: class of the key's entries, whose fields are keys below it."""

    caption: str = ""
    rule: str | Collection[Any] = ""
    axis: str = ""
    of_node: str = ""
    unit: str = ""
    entry: type | None = None


@cache
def keys_of(cls: type) -> Mapping[str, Key]:
    """Return the declarations of a dataclass by the names of its fields, in their order."""
    hints = typing.get_type_hints(cls, include_extras=True)
    declared = {name: (*getattr(hint, "__metadata__", ()), None)[0] for name, hint in hints.items()}
    return {name: key for name, key in declared.items() if isinstance(key, Key)}


def mappings_in(cls: type) -> dict[str, Any]:
    """Return the type of the keys of each field of a dataclass whose value may be a mapping, by the field's name."""
    hints = {name: (hint, *typing.get_args(hint)) for name, hint in typing.get_type_hints(cls).items()}
    return {
        name: typing.get_args(option)[0]
        for name, options in hints.items()
        for option in options
        if typing.get_origin(options[0]) is not list and typing.get_origin(option) is Mapping
    }


_RANGE = re.compile(r"in ([\[(])(\S+), (?:\w+ = )?([^\s\])]+)([\])]).*")


def check_options(owner: object, **rules: str | Collection[Any]) -> None:
    """Raise ValueError, in one line, for the first option of a dataclass that does not follow its rule: the rules
    that its keys declare come first.

    rules: {option: rule}, with `>= 0`, `> 0`, `in [0, 1)` or `in [1, tau = 4]`, which a unit may follow, and
    ` or null` if None is allowed; or the option's choices. A number that is not finite follows no rule but one that
    ends at infinity, `in [1, inf]`."""
    for name, key in keys_of(type(owner)).items():
        if key.rule and getattr(owner, name) is not None:
            _check(name, getattr(owner, name), key.rule)
    for name, rule in rules.items():
        _check(name, getattr(owner, name), rule)


def _check(name: str, value: Any, rule: str | Collection[Any]) -> None:
    if not isinstance(rule, str):
        if value not in rule:
            raise ValueError(f"{name} must be one of {', '.join(map(str, rule))}, got {value!r}")
        return
    if rule.endswith(" or null") and value is None:
        return
    if span := _RANGE.fullmatch(rule):
        opening, least, most, closing = span.groups()
        follows = value <= float(most) if closing == "]" else value < float(most)
    else:
        opening, least, *_ = rule.split(" ")
        follows = value < math.inf
    if not (follows and (value >= float(least) if opening in ("[", ">=") else value > float(least))):
        raise ValueError(f"{name} must be {rule}, got {value}")
