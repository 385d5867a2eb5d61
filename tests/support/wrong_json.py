"""Wrong JSON: a right value, with another one at one of its places, or nothing there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

PLACE = "the place of what is wrong"
WRONG = ["null", "true", "-1", "1e999", "1" * 400, r'"\u001b[2J\n|x"', "[]", "{}", '[["x"]]', '{"x": {"y": []}}']
WRONG += [opening * 3000 + "1" + closing * 3000 for opening, closing in (("[", "]"), ('{"x":', "}"))]


def wrong(value: Any) -> Iterator[str]:
    """Yield the JSON of a value with every wrong one at each of its places, itself included, and with each left out."""
    for number, whole in enumerate(_with_place(value)):
        text = json.dumps(whole)
        yield from (text.replace(f'"{PLACE}"', other) for other in WRONG)
        if number:
            yield json.dumps(_without_place(whole))


def _with_place(value: Any) -> Iterator[Any]:
    yield PLACE
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        for changed in _with_place(inner):
            copy = value.copy()
            copy[key] = changed
            yield copy


def _without_place(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_place(inner) for key, inner in value.items() if inner != PLACE}
    return [_without_place(inner) for inner in value if inner != PLACE] if isinstance(value, list) else value
