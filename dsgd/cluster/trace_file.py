"""Read traces, tables of numbers in text files with a header: `step,rank,seconds`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dsgd.host.files import text_lines


def read_rows(path: str, key: str, columns: Sequence[str]) -> list[tuple[str, tuple[float, ...]]]:
    """Return the lines of a csv file with these columns: for each where it stands, for messages, and its numbers.

    key: that names the file, for messages. Raises ValueError naming the file and the line."""
    lines = text_lines(path, key)
    header = lines[0][:40] if lines else ""
    if [name.strip() for name in header.split(",")] != list(columns):
        raise ValueError(f"{key} must begin with the line {','.join(columns)}, got {header!r} ({path})")
    rows: list[tuple[str, tuple[float, ...]]] = []
    for number, line in enumerate(lines[1:], start=2):
        where = f"({path}, line {number})"
        if not line.strip():
            continue
        try:
            numbers = tuple(map(float, line.split(",")))
        except ValueError:
            numbers = ()
        if len(numbers) != len(columns) or not all(map(math.isfinite, numbers)):
            raise ValueError(f"{key} must hold {len(columns)} numbers a line, got {line[:40]!r} {where}")
        rows.append((where, numbers))
    if not rows:
        raise ValueError(f"{key} must hold at least one line of numbers, got none ({path})")
    return rows


def whole(value: float, name: str, key: str, where: str) -> int:
    """Return a whole number >= 0 of a trace. Raises ValueError for another one."""
    if value < 0 or not value.is_integer():
        raise ValueError(f"{key} must have a whole {name} >= 0 on every line, got {value:g} {where}")
    return int(value)
