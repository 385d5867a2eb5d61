"""Read rows that stand in groups, as tables of commands have them in YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any


def flat_rows(group: Mapping[str, Any], outer: Mapping[str, Any] = MappingProxyType({})) -> Iterator[dict[str, Any]]:
    """Yield the fields of each row of a group, in their order. outer: the fields of the groups around it.

    An entry of `rows` is a group, or the values of a row, named by `columns`; a group without rows is a row. A row has
    the fields of its groups, too, and `name` and `command` have fields of the row between braces."""
    common = {**outer, **group}
    for entry in group.get("rows", [[]]):
        if isinstance(entry, Mapping):
            yield from flat_rows(entry, common)
        else:
            row = common | (dict(zip(common["columns"], entry, strict=True)) if entry else {})
            yield row | {key: row[key].format_map(row) for key in ("name", "command")}
