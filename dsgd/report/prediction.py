"""Compare the step time that the simulator predicts with the one that real processes took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from dsgd.record.reader import Run, number
from dsgd.record.safe_text import counted
from dsgd.report.fields import field_value
from dsgd.report.labels import Flat, flatten, gather, label
from dsgd.report.setting import setting_text, whole_setting
from dsgd.report.table_layout import Cell, ReportTable

# heading: field of the CSV file
_COLUMNS = {
    "cluster": "cluster",
    "algorithm": "algorithm",
    "nodes": "nodes",
    "measured step (ms)": "measured_step_ms",
    "predicted step (ms)": "predicted_step_ms",
    "predicted/measured": "predicted_over_measured",
    "idle measured (%)": "measured_idle_percent",
    "idle predicted (%)": "predicted_idle_percent",
}
CAPTION = (
    "step: mean time in which a worker makes one; measured: wall time of engine=dist; predicted: virtual time of "
    "engine=sim; medians where a configuration ran more than once"
)


@dataclass(frozen=True)
class Pair:
    """One configuration, measured in real processes and simulated. cluster, algorithm: its differences from other
    pairs. measured, predicted: its runs."""

    cluster: str
    algorithm: str
    nodes: int | None
    measured: list[Run]
    predicted: list[Run]

    @property
    def ratio(self) -> float:
        """Return the predicted over the measured step time."""
        return median_step_s(self.predicted) / median_step_s(self.measured)


def step_s(run: Run) -> float:
    """Return the mean time of a worker's step, in seconds of the run's clock; NaN unless the run completed."""
    return field_value(run, "step_s") if run.status == "completed" else math.nan


def median_step_s(runs: Sequence[Run]) -> float:
    """Return the median of the step times."""
    return median(map(step_s, runs))


def pairs(runs: Sequence[Run]) -> list[Pair]:
    """Pair the configurations that completed both simulated and for real, in order of first appearance.

    The runs of a pair differ only in the engine, the seed and the cluster's numbers, which real runs do not use; the
    cluster's name must agree. Simulations with different numbers under one name are separate predictions. Simulations
    with the times of another network than the trained one predict nothing."""
    measured = {_key(flat): group for flat, group in gather(_timed(runs, "wall"))}
    predicted = [(flat, group) for flat, group in gather(_timed(runs, "virtual")) if _key(flat) in measured]
    compared = []
    algorithms, clusters = _algorithms([flat for flat, _ in predicted]), _clusters([flat for flat, _ in predicted])
    for (flat, simulated), algorithm, cluster in zip(predicted, algorithms, clusters, strict=True):
        real = measured[_key(flat)]
        compared.append(Pair(cluster, algorithm or real[0].algorithm, real[0].nodes, real, simulated))
    return compared


def why_no_pair(runs: Sequence[Run]) -> str:
    """Return the missing part of a pair: an engine, or configurations that agree."""
    simulated, real = ([_key(flat) for _, flat in _timed(runs, clock)] for clock in ("virtual", "wall"))
    if not simulated:
        return "no completed run of engine=sim with the trained network's own times"
    if not real:
        return "no completed run of engine=dist"
    differing = (sorted({key for key, _ in a ^ b}) for a in simulated for b in real)
    return f"runs of engine=sim and engine=dist differ in more than the engine: {', '.join(min(differing, key=len))}"


def sentences(runs: Sequence[Run]) -> list[str]:
    """Return one sentence that compares predictions with measurements; none without a pair."""
    ordered = sorted(pairs(runs), key=lambda pair: pair.ratio)
    if not ordered:
        return []
    least, most = (f"{pair.ratio:.2f} ({_name(pair)})" for pair in (ordered[0], ordered[-1]))
    if len(ordered) == 1:
        return [f"time of a step, predicted over measured: {least}"]
    middle = median(pair.ratio for pair in ordered)
    return [f"time of a step, predicted over measured: {middle:.2f} in the median of {len(ordered)}, {least} to {most}"]


def pairs_table(compared: Sequence[Pair], runs: Sequence[Run] = ()) -> ReportTable:
    """Return the table of the pairs; the CSV file also counts the runs behind each time. runs: runs of the pairs."""
    rows: list[list[Cell]] = []
    csv_rows: list[list[Any]] = [[*_COLUMNS.values(), "measured_runs", "predicted_runs"]]
    for pair in compared:
        both = (pair.measured, pair.predicted)
        nodes = math.nan if pair.nodes is None else pair.nodes
        steps_ms, idle_percent = [1e3 * median_step_s(each) for each in both], [100 * _idle(each) for each in both]
        row: list[float | int | str] = [pair.cluster, pair.algorithm, nodes, *steps_ms, pair.ratio, *idle_percent]
        rows.append(list(row))
        known = ["" if value != value else value for value in row]  # NaN alone differs from itself
        csv_rows.append([*known, *map(len, both)])
    caption = "\n".join(line for line in (CAPTION, setting_text(runs)) if line)
    whole = whole_setting(runs) if runs else None
    return ReportTable(list(_COLUMNS), frozenset({"cluster", "algorithm"}), rows, csv_rows, caption, 5, whole)


def _timed(runs: Sequence[Run], clock: str) -> list[tuple[Run, Flat]]:
    """Select the runs of one clock that have a step time of the trained network. Returns them with their flat
    configurations, without engine and seed, which may differ in a pair."""
    timed = [run for run in runs if run.clock == clock and run.time_model is None and not math.isnan(step_s(run))]
    return [(run, _without(flat, "engine", "seed")) for run, flat in zip(timed, flatten(timed), strict=True)]


def _without(flat: Flat, *groups: str) -> Flat:
    return {key: text for key, text in flat.items() if key.partition(".")[0] not in groups}


def _key(flat: Flat) -> frozenset[tuple[str, str]]:
    """Return the settings that a prediction and a measurement must share; of the cluster's only the name."""
    return frozenset(item for item in flat.items() if item[0] == "cluster.name" or not item[0].startswith("cluster."))


def _algorithms(flats: Sequence[Flat]) -> list[str]:
    """Name each configuration by its algorithm and its other differences. Nodes and cluster have their own columns; the
    budget is named only if two configurations would have one name without it."""
    names = _named_without(flats, "budget")
    places = {(flat.get("cluster.name"), flat.get("nodes"), name) for flat, name in zip(flats, names, strict=True)}
    return names if len(places) == len(set(map(_key, flats))) else _named_without(flats)


def _named_without(flats: Sequence[Flat], *groups: str) -> list[str]:
    bare = [_without(flat, "nodes", "cluster", *groups) for flat in flats]
    algorithms = [flat.get("algo.name", "") for flat in bare]
    common = len(set(algorithms)) == 1  # then labels leave it out
    return [
        ", ".join(part for part in (algorithm if common else "", text) if part)
        for algorithm, text in zip(algorithms, label(bare), strict=True)
    ]


def _clusters(flats: Sequence[Flat]) -> list[str]:
    """Name each cluster, and the numbers that differ between clusters of that name."""
    clusters = [{key: text for key, text in flat.items() if key.startswith("cluster.")} for flat in flats]
    titles = []
    for flat in clusters:
        name = flat.get("cluster.name", "")
        namesakes = [other for other in clusters if other.get("cluster.name", "") == name]
        titles.append(", ".join(part for part in (name, label(namesakes)[namesakes.index(flat)]) if part))
    return titles


def _idle(runs: Sequence[Run]) -> float:
    """Return the median of the mean idle shares; NaN if one is unknown."""
    idle = [number(run.final("idle_fraction_mean")) for run in runs]
    return math.nan if any(map(math.isnan, idle)) else median(idle)


def _name(pair: Pair) -> str:
    return ", ".join(part for part in (pair.algorithm, counted(pair.nodes or 0, "node"), pair.cluster) if part)
