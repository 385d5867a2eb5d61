"""Make the table of a comparison: one row per contender, soonest first, with its tuning and its cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dsgd.comparison.contenders import Comparison, Contender, Prices, Standing, pairs_of, score
from dsgd.record.safe_text import counted
from dsgd.report.fields import estimate_of, field_value, rule_of
from dsgd.report.interval import CONFIDENCE, PAIRED, Estimate
from dsgd.report.labels import differing_settings, status_text
from dsgd.report.setting import value_text, whole_setting
from dsgd.report.table import caption
from dsgd.report.table_layout import Cell, ReportTable, exact, missed_note, plain

UNDECIDED = "undecided"  # most seeds: neither the contender nor the first reached the target
_OTHERS: dict[str, tuple[str, float]] = {
    "idle (%)": ("idle_fraction_mean", 100),
    "sent per node (MB)": ("bytes_sent_per_node", 1e-6),
    "first crossing (s)": ("first_crossing_s", 1),
    "stable crossing (s)": ("stable_crossing_s", 1),
}
_CSV_FIELDS = (
    "target_censored_at_s", "first_crossing_s", "stable_crossing_s", "test_accuracy", "test_loss", "time_s",
    "bytes_sent_per_node", "idle_fraction_mean",
)  # fmt: skip


def comparison_table(comparison: Comparison, prices: Prices | None = None) -> ReportTable:
    """Return the table of a comparison, with the cost to the target if prices are given.

    prices: prices of a cluster; None: the comparison's. In the CSV file each run has a line, with every key in which
    configurations differ."""
    order, timed = comparison.standings, comparison.aim is not None
    prices = prices or comparison.prices
    columns: dict[str, list[Cell]] = {"contender": [standing.name for standing in order]}
    score_heading = "cost" if comparison.prices else "time to target (s)" if timed else "loss"
    columns[score_heading] = [standing.score for standing in order]
    if len(order) > 1:
        columns["times the first's"] = [ratio_cell(standing.ratio) for standing in order]
    if any(run.outcome != "completed" for run in comparison.runs):
        columns["status"] = [status_text(standing.runs) for standing in order]
    heading, tuned = _tuned([standing.contender for standing in order])
    if comparison.prices is not None:
        columns["time to target (s)"] = list(_scores(comparison, None))
    columns |= _measured(order, {"test accuracy": ("test_accuracy", 1)})
    columns |= {heading: list(tuned)} if heading else {}
    if timed and prices is not None and comparison.prices is None:
        columns["cost"] = list(_scores(comparison, prices))
    columns["tuning runs"] = [standing.contender.spent for standing in order]
    columns |= _measured(order, _OTHERS)
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    csv_rows, texts = _csv_rows(comparison, prices), frozenset({"contender", "status", heading})
    below = _caption(comparison, prices, rows)
    return ReportTable(list(columns), texts, rows, csv_rows, below, whole=_whole(comparison))


def _whole(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain values: its goal, the setting of its runs, and each contender in its order."""
    contenders = [
        {
            "contender": standing.name,
            "chosen": dict(standing.contender.chosen),
            "score": plain(standing.score),
            "ratio": plain(standing.ratio),
            "missed": standing.missed,
            "distinguishable": standing.behind,
        }
        for standing in comparison.standings
    ]
    aim = comparison.aim
    goal = {
        "of": "accuracy" if aim is None else aim.field.removeprefix("test_"),
        "level": None if aim is None else aim.level,
        "crossing": rule_of(comparison.runs[0]),
    }
    confidence = {"of_all_ratios": max(0.0, comparison.confidence), "seeds_needed": comparison.seeds_needed}
    values = {"goal": goal, "ratio": ratio_text(comparison), "confidence": confidence, "contenders": contenders}
    return values | whole_setting(comparison.runs)


def ratio_cell(ratio: Estimate) -> Cell:
    """Return a ratio; UNDECIDED if unknown."""
    return UNDECIDED if math.isnan(ratio.median) else ratio


def ratio_text(comparison: Comparison) -> str:
    """Return the name of a comparison's ratios."""
    return PAIRED if comparison.prices is None else PAIRED.replace("both times", "both costs")


def _caption(comparison: Comparison, prices: Prices | None, rows: Sequence[Sequence[Cell]]) -> str:
    """Return the caption: the caption of the runs' summary table, the meaning of ratios, and the prices."""
    first = comparison.standings[0]
    lines = [caption(comparison.runs), *tuning_notes(comparison)]
    if comparison.aim is None:
        lines.append("no target: the loss at the end is compared")
    if len(comparison.standings) > 1:
        lines.append(f"times the first's, which is the order: {ratio_text(comparison)}, over that of {first.name}")
        lines.append(f"not distinguishable where its interval holds 1; {_confidence(comparison)}")
        lines += missed_note(rows)
    if comparison.aim is not None and prices is not None:
        pairs = zip(_scores(comparison, prices), comparison.standings, strict=True)
        least, cheapest = min(((cost.median, standing.name) for cost, standing in pairs), key=lambda pair: pair[0])
        least_text = f"; least in the median: {cheapest}" * math.isfinite(least)
        lines.append(f"cost to the target: {prices.text}{least_text}")
    return "\n".join(line for line in lines if line)


def tuning_notes(comparison: Comparison) -> list[str]:
    """Return notes on the tuned keys of each contender, with the number of runs; empty without tuning."""
    contenders = [standing.contender for standing in comparison.standings]
    keys = list(dict.fromkeys(key for contender in contenders for key in contender.chosen))
    runs = sorted({contender.spent for contender in contenders})
    spent = counted(runs[0], "run") if len(runs) == 1 else f"{runs[0]} to {runs[-1]} runs"
    return [f"tuned for each contender by validation samples: {', '.join(keys)}, in {spent} each"] if keys else []


def _confidence(comparison: Comparison) -> str:
    """Return a note on the confidence of all intervals of ratios together."""
    pairs = pairs_of(len(comparison.standings))
    of_all = f"corrected for {pairs} pairs of contenders: " * (pairs > 1) + "confidence"
    if comparison.confidence >= CONFIDENCE:
        return f"{of_all} {comparison.confidence:.0%}"
    return f"{of_all} below {CONFIDENCE:.0%}, for which it takes {comparison.seeds_needed} seeds"


def _measured(order: Sequence[Standing], fields: dict[str, tuple[str, float]]) -> dict[str, list[Cell]]:
    """Return columns of fields that some run has, by headings. fields: {heading: (field, factor to its unit)}."""
    columns = {
        heading: [estimate_of(standing.runs, field, factor) for standing in order]
        for heading, (field, factor) in fields.items()
    }
    return {heading: list(cells) for heading, cells in columns.items() if any(cell.count for cell in cells)}


def _scores(comparison: Comparison, prices: Prices | None) -> list[Estimate]:
    """Return the time, or with prices the cost, to the target of each contender, in the order of the standings."""
    return [replace(comparison, prices=prices).estimate(standing.runs) for standing in comparison.standings]


def _tuned(contenders: Sequence[Contender]) -> tuple[str, list[str]]:
    """Return heading and cells of the tuned values, with the working range of the first key: `0.2 (0.1–0.4)`."""
    keys = list(dict.fromkeys(key for contender in contenders for key in contender.chosen))
    if not keys:
        return "", []
    short = {key: key.rpartition(".")[2] for key in keys}
    alone = len(keys) == 1
    texts = []
    for contender in contenders:
        works = f" ({contender.works[0]:g}–{contender.works[1]:g})" if contender.works else ""
        parts = [f"{short[key]}=" * (not alone) + value_text(value) for key, value in contender.chosen.items()]
        texts.append(", ".join([part + works * (i == 0) for i, part in enumerate(parts)]) or "-")
    return f"{short[keys[0]] if alone else 'chosen'} (works)", texts


def _csv_rows(comparison: Comparison, prices: Prices | None) -> list[list[Any]]:
    settings, timed = differing_settings(comparison.runs), comparison.aim is not None
    chosen = dict.fromkeys(key for standing in comparison.standings for key in standing.contender.chosen)
    keys = [key for key in chosen if key not in settings]
    costs = ["cost"] if timed and prices is not None else []
    head = ["contender", "folder", "status", "clock", "target", "time_to_target_s" if timed else "loss"]
    lines: list[list[Any]] = [[*head, *costs, *settings, *keys, "works_low", "works_high", "tuning_runs", *_CSV_FIELDS]]
    entered = [(standing.contender, run) for standing in comparison.standings for run in standing.runs]
    level = exact(math.nan if comparison.aim is None else comparison.aim.level)
    for i, (contender, run) in enumerate(entered):
        value = score(run)
        described = [contender.label, str(run.folder), run.outcome, run.clock or "", level]
        cost = [exact(prices.cost(run, value))] if timed and prices is not None else []
        values = [*(texts[i] for texts in settings.values()), *(str(contender.chosen.get(key, "")) for key in keys)]
        works = [exact(end) for end in contender.works or (math.nan, math.nan)]
        measured = [exact(field_value(run, field)) for field in _CSV_FIELDS]
        lines.append([*described, exact(value), *cost, *values, *works, contender.spent, *measured])
    return lines
