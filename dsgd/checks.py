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
        value: Any = getattr(owner, name)
        if not isinstance(rule, str):
            if value not in rule:
                raise ValueError(f"{name} must be one of {', '.join(map(str, rule))}, got {value!r}")
            continue
        if rule.endswith(" or null") and getattr(owner, name) is None:
            continue
        limits = rule.removesuffix(" or null")
        if span := _RANGE.fullmatch(limits):
            opening, least, most, closing = span.groups()
            follows = value <= float(most) if closing == "]" else value < float(most)
        else:
            opening, least = limits.split(" ")
            follows = value < math.inf
        follows = follows and (value >= float(least) if opening in ("[", ">=") else value > float(least))
        if not follows:
            raise ValueError(f"{name} must be {rule}, got {value}")
