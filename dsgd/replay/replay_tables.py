"""Say what a job would have cost by other methods: tables, JSON, and the answer in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsgd.comparison.contenders import Prices
from dsgd.experiment import Experiment
from dsgd.record.safe_text import counted
from dsgd.replay.night import Night
from dsgd.replay.whatifs import WhatIf
from dsgd.report.table_layout import Cell, ReportTable
from dsgd.report.units import bandwidth, duration, in_units

Factors = dict[str, float | None]  # by method: factor on the bandwidth with which the first method takes as long
CAPTION = (
    "of the mean worker's time; communication: not hidden by gradients; waiting: for others and for their messages"
)


def night_table(
    nights: Sequence[Night], factors: Factors, nodes: int, prices: Prices | None, setting: str
) -> ReportTable:
    """Return a row for each method: time, its shares, bytes and cost. nodes: number of workers that are paid."""
    islands = nights[0].bytes_between is not None
    headings = ["method", "time", "step", "computing (%)", "communication (%)", "waiting (%)", "sent"]
    headings += ["between islands"] * islands + ["cost"] * (prices is not None) + ["bandwidth for this time"]
    rows: list[list[Cell]] = []
    for night in nights:
        shares = [f"{100 * seconds / night.time_s:.1f}" for seconds in night.seconds.values()]
        row: list[Cell] = [night.method, duration(night.time_s), in_units(night.step_s, "s"), *shares]
        row.append(in_units(night.bytes_sent, "bytes"))
        row += [in_units(night.bytes_between, "bytes")] if night.bytes_between is not None else []
        row += [] if prices is None else [cost_of(night, nodes, prices)]
        rows.append([*row, _factor_text(factors, night.method)])
    egress = "bytes that leave an island" if islands else "bytes of all nodes"
    lines = [CAPTION]
    lines += [f"bandwidth for this time: of {nights[0].method}, times that of the cluster"] * bool(factors)
    lines += [] if prices is None else [f"cost: {prices.text}; {egress}"]
    lines += [simulated_text(nights), setting]
    return ReportTable(headings, frozenset({"method"}), rows, [headings, *rows], "\n".join(lines), kept=3)


def whatif_table(nights: Sequence[Night], conditions: Sequence[WhatIf]) -> ReportTable:
    """Return a row for each other condition of the cluster, with the time by each method."""
    headings = ["what if", *(night.method for night in nights)]
    rows: list[list[Cell]] = [["as described", *(duration(night.time_s) for night in nights)]]
    for whatif in conditions:
        changes = [
            f"{duration(time_s)} ({100 * (time_s / night.time_s - 1):+.1f} %)"
            for time_s, night in zip(whatif.times_s, nights, strict=True)
        ]
        rows.append([whatif.condition, *changes])
    return ReportTable(headings, frozenset({"what if"}), rows, [headings, *rows], "")


def answer(nights: Sequence[Night], factors: Factors, link: str, traced_s: float | None = None) -> str:
    """Return the answer in a sentence: the time by the first method, by the fastest one, and the bandwidth that would
    be worth as much. link: name of this bandwidth. traced_s: time of as many traced steps, None without traces."""
    first, *others = nights
    text = (
        f"{first.steps:,} step{'s take' if first.steps > 1 else ' takes'} {duration(first.time_s)} with {first.method}"
    )
    if traced_s is not None:
        text = (
            f"{first.steps:,} traced steps took {duration(traced_s)}, {first.method} predicted {duration(first.time_s)}"
        )
    if not others:
        return f"{text}."
    best = min(others, key=lambda night: night.time_s)
    would = f"{best.method} would {'take' if traced_s is None else 'have taken'} {duration(best.time_s)}"
    if best.method not in factors:
        return f"{text}; no other method is faster: {would}."
    factor = factors[best.method]
    worth = (
        f"no {link} would be enough for the same"
        if factor is None
        else f"the {link} would have to be {factor:.2g} times as high for the same"
    )
    return f"{text}; {would}; {worth}."


def simulated_text(nights: Sequence[Night]) -> str:
    """Return how many steps of each method were simulated, and how the others follow."""
    methods: dict[str, list[str]] = {}
    for night in nights:
        how = "which repeat exactly" if night.exact else "whose second half stands for the others"
        text = "all" if night.simulated == night.steps else f"{night.simulated:,}, {how}"
        methods.setdefault(text, []).append(night.method)
    texts = [f"{text} ({', '.join(names)})" for text, names in methods.items()]
    return f"steps simulated: {'; '.join(texts)}"


def described(experiment: Experiment) -> str:
    """Return the cluster in one line."""
    cluster = experiment.cluster
    assert cluster.mean_gradient_s is not None
    assert cluster.message_bytes is not None
    parts = [counted(experiment.nodes, "node"), f"gradient of {in_units(cluster.mean_gradient_s, 's')}"]
    parts += [f"messages of {in_units(cluster.message_bytes, 'bytes')}", bandwidth(cluster.bandwidth)]
    parts.append(f"latency {in_units(cluster.latency_s, 's')}")
    if cluster.islands > 1:
        between = f"{bandwidth(cluster.wan_bandwidth or cluster.bandwidth)} between {cluster.islands} islands"
        parts += [between, f"latency {in_units(cluster.latency_between_islands_s, 's')}"]
    if cluster.link_matrix is not None:
        parts.append(f"regions {', '.join(cluster.link_matrix.regions)}")
    return "; ".join(parts)


def cost_of(night: Night, nodes: int, prices: Prices) -> float:
    """Return the price of the nodes' time and of the bytes that leave an island, or without islands a node."""
    return prices.charge(nodes, night.time_s, night.egress_bytes)


def as_json(
    nights: Sequence[Night], factors: Factors, conditions: Sequence[WhatIf], nodes: int, prices: Prices | None
) -> dict[str, Any]:
    """Return all numbers for JSON, in seconds and bytes."""
    methods = []
    for night in nights:
        fields = {**vars(night), "step_s": night.step_s, "waiting_s": night.waiting_s}
        fields["cost"] = None if prices is None else cost_of(night, nodes, prices)
        methods.append({**fields, "bandwidth_factor": factors.get(night.method)})
    names = [night.method for night in nights]
    whatif = [
        {"condition": each.condition, "times_s": dict(zip(names, each.times_s, strict=True))} for each in conditions
    ]
    return {"methods": methods, "whatif": whatif}


def _factor_text(factors: Factors, method: str) -> str:
    if method not in factors:
        return "-"
    factor = factors[method]
    return "none" if factor is None else f"{factor:.2g}"
