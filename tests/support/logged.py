"""Make what was logged of a study by hand, to judge claims by runs that never ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsgd.record.reader import Run
from studies.reproduction.logged import Logged


def run(
    algo: str = "sync",
    settings: Mapping[str, Any] | None = None,
    marks: Sequence[Mapping[str, Any]] = (),
    **summary: Any,
) -> Run:
    """Return a run. settings: dotted key, value. summary: its fields; completed unless it has another status."""
    config: dict[str, Any] = {"algo": {"name": algo}, "nodes": 8, "seed": 0}
    for key, value in (settings or {}).items():
        *groups, leaf = key.split(".")
        place = config
        for group in groups:
            place = place.setdefault(group, {})
        place[leaf] = value
    found = {"algo": algo, "status": "completed", "clock": "virtual", "collapsed": False}
    return Run(Path("logged"), config, [dict(mark) for mark in marks], found | summary)


def study(*runs: Run) -> Logged:
    """Return a study of these runs."""
    return Logged(tuple(runs))
