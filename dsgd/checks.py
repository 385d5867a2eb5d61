"""Check options by rules that are written as an error says them: `tau=">= 1"`, `beta="in [0, 1)"`."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any

_RANGE = re.compile(r"in ([\[(])(\S+), (?:\w+ = )?(\S+)([\])])")


def check_options(owner: object, **rules: str | Collection[Any]) -> None:
    """Raise ValueError, in one line, for the first option of an object that does not follow its rule.

    rules: by the name of the option: `>= 0`, `> 0`, `in [0, 1)`, `in [1, tau = 4]`, with ` or null` behind it where
    None is allowed; or the choices, of which the option must be one. What is not finite follows no rule of numbers."""
    for name, rule in rules.items():
        value = getattr(owner, name)
        if isinstance(rule, str):
            is_null = value is None and rule.endswith(" or null")
            if not (is_null or _is_within(value, rule.removesuffix(" or null"))):
                raise ValueError(f"{name} must be {rule}, got {value}")
        elif value not in rule:
            raise ValueError(f"{name} must be one of {', '.join(map(str, rule))}, got {value!r}")


def _is_within(value: Any, rule: str) -> bool:
    """Tell whether a number follows a rule."""
    if span := _RANGE.fullmatch(rule):
        opening, least, most, closing = span.groups()
        below = value <= float(most) if closing == "]" else value < float(most)
    else:
        opening, least = rule.split(" ")
        below = value < math.inf
    return below and (value >= float(least) if opening in ("[", ">=") else value > float(least))
