"""Choose runs and keys for a comparison: keys by their short names, and the best value of a key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from dsgd.record.reader import Run, number
from dsgd.report.fields import DERIVED, field_names, field_value, is_rate, is_time
from dsgd.report.interval import estimate
from dsgd.report.labels import flatten

_BAD = ("diverged", "failed", "collapsed")  # such a run is never the best


def find_key(runs: Sequence[Run], text: str, option: str) -> str:
    """Return the dotted key that is meant: itself, a group (`algo`), or the end of one key (`lr`).

    Raises ValueError, with near matches, for no such key or several, and where some runs have none."""
    flats = flatten(runs)
    keys = list(dict.fromkeys(key for flat in flats for key in flat))
    matching = [key for key in keys if key in (text, f"{text}.name")] or [
        key for key in keys if key.endswith(f".{text}")
    ]
    if not matching:
        ends = {end: key for key in keys for end in (key, key.removesuffix(".name"), key.rpartition(".")[2])}
        near = dict.fromkeys(ends[end].removesuffix(".name") for end in get_close_matches(text, ends, cutoff=0.75))
        raise ValueError(f"{option} must be a key of the runs, got {text!r}{_did_you_mean(near)}")
    if len(matching) > 1:
        raise ValueError(f"{option} must be one key, got {text!r}: {', '.join(matching)}")
    (key,) = matching
    if without := [run for run, flat in zip(runs, flats, strict=True) if key not in flat]:
        names = ", ".join(dict.fromkeys(run.algorithm for run in without))
        raise ValueError(f"{option} {key}: {len(without)} of {len(runs)} runs have no such key ({names})")
    return key


def check_field(runs: Sequence[Run], name: str) -> None:
    """Raise ValueError, with near matches, unless some run has a number for a field."""
    present = field_names(runs)
    if name in present:
        return
    known = {*DERIVED, *(field for run in runs for field in run.summary or {})}
    if name in known:
        raise ValueError(f"--y {name}: no run has a number for it")
    raise ValueError(
        f"--y must be a field of the runs, got {name!r}{_did_you_mean(get_close_matches(name, present, cutoff=0.75))}"
    )


def best_over(runs: Sequence[Run], key: str, field: str) -> tuple[list[Run], str]:
    """Keep, of each configuration, the value of a key with the best median of a field over seeds; of equal ones the
    smallest. A run that ended badly loses. Returns the runs, and a note on how they were chosen.

    Raises ValueError for a field of which neither more nor less is better."""
    sign = _better(field)
    flats = flatten(runs)
    groups: dict[frozenset[tuple[str, str]], dict[str, list[int]]] = {}
    for i, flat in enumerate(flats):
        others = frozenset((name, text) for name, text in flat.items() if name not in (key, "seed"))
        groups.setdefault(others, {}).setdefault(flat[key], []).append(i)
    kept: list[int] = []
    at_edge: list[str] = []
    for values in groups.values():
        scores = {text: estimate([_score(runs[i], field, sign) for i in members]) for text, members in values.items()}
        ordered = in_order(values)
        best = min(ordered, key=lambda text: scores[text].median if scores[text].count else math.inf)
        kept += values[best]
        if len(ordered) > 1 and best in (ordered[0], ordered[-1]):
            at_edge.append(f"{runs[values[best][0]].algorithm} {best}")
    texts = in_order(flat[key] for flat in flats)
    note = f"{key}: for each configuration the best of {', '.join(texts)} by {field}, on the seeds drawn here"
    edge = f"; at the edge of its values: {', '.join(dict.fromkeys(at_edge))}" if at_edge else ""
    return [runs[i] for i in sorted(kept)], note + edge


def _better(field: str) -> int:
    """Return 1 where less is better, -1 where more is. Raises ValueError for others."""
    if is_rate(field) or "accuracy" in field or field == "test_top5":
        return -1
    if is_time(field) or "loss" in field or "error" in field:
        return 1
    raise ValueError(f"--best-over needs a loss, an accuracy, a time or a rate as --y, got {field}")


def _score(run: Run, field: str, sign: int) -> float:
    value = sign * field_value(run, field)
    return math.inf if run.status in _BAD or math.isnan(value) else value


def in_order(texts: Iterable[str]) -> list[str]:
    """Sort values of a key: numbers by their value, then texts; each comes once."""
    return sorted(set(texts), key=_in_order)


def _in_order(text: str) -> tuple[int, float, str]:
    """Return a sorting key: numbers by their value, then texts."""
    try:
        value = number(float(text))
    except ValueError:
        value = math.nan
    return (1, 0.0, text) if math.isnan(value) else (0, value, text)


def _did_you_mean(near: Sequence[str] | dict[str, None]) -> str:
    return f"; did you mean {' or '.join(near)}?" if near else ""
