"""Put runs and their marks into rows, as of a data frame: plain dictionaries, a key for each column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsgd.record.reader import Run
from dsgd.report.fields import DERIVED, field_value
from dsgd.report.labels import differing_settings

# keys that are columns also where all runs agree
IMPORTANT = ("algo.name", "model.name", "data.name", "topology.name", "nodes", "batch_size", "optimizer.lr", "seed")


def run_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row for each run; all have the same keys, in the same order.

    These are: folder, status, outcome; the important keys of the configuration and those in which the runs differ;
    the fields of the summaries; the derived fields, which are infinite for a target never reached and NaN where they
    are not known. A derived field stands in place of the summary's field of the same name. A field of the summary that
    is called like a key is `summary.NAME`. None: the run has no such key."""
    differing = differing_settings(runs)
    keys = list(dict.fromkeys([*IMPORTANT, *differing]))
    recorded = dict.fromkeys(name for run in runs for name in run.summary or {} if name not in {"status", *DERIVED})
    rows = []
    for i, run in enumerate(runs):
        row: dict[str, Any] = {"folder": str(run.folder), "status": run.status, "outcome": run.outcome}
        row |= {key: _setting(run, key, differing[key][i] if key in differing else "") for key in keys}
        summary = {f"summary.{name}" if name in row else name: run.final(name) for name in recorded}
        rows.append(row | summary | {name: field_value(run, name) for name in DERIVED})
    return rows


def mark_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a row for each mark: the folder of its run, and its fields; None for one that only other marks have."""
    names = dict.fromkeys(name for run in runs for mark in run.metrics for name in mark)
    marks = [(str(run.folder), mark) for run in runs for mark in run.metrics]
    return [{"folder": folder} | {name: mark.get(name) for name in names} for folder, mark in marks]


def _setting(run: Run, key: str, text: str) -> Any:
    """Return the value of a key; its text where only the name of a choice stands for it."""
    if key.endswith(".name"):
        return run.chosen(key.removesuffix(".name")) or text or None
    value = run.setting(key)
    return (text or None) if value is None and text != "none" else value
