"""Predicted against measured: the step time the simulator foretells, and the one that real processes took."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dsgd.record.reader import Run, number
from dsgd.report.labels import Flat, flatten, label
from dsgd.report.table import shown

# heading: field of the CSV file; text first
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
_TEXTS = 2
CAPTION = (
    "step: mean time in which a worker makes one; measured: wall time of engine=dist; predicted: virtual time of "
    "engine=sim; medians where a configuration ran more than once"
)

_Configuration = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Timing:
    """The runs of one configuration on one engine.

    steps_s: seconds per step of each run. idle: median of their mean idle shares, fractions; NaN if one is unknown.
    """

    steps_s: tuple[float, ...]
    idle: float

    @property
    def step_s(self) -> float:
        return median(self.steps_s)


@dataclass(frozen=True)
class Pair:
    """One configuration, simulated and run for real; cluster and algorithm say what is particular to it."""

    cluster: str
    algorithm: str
    nodes: int | None
    measured: Timing
    predicted: Timing

    @property
    def ratio(self) -> float:
        """Predicted over measured step time."""
        return self.predicted.step_s / self.measured.step_s


def step_s(run: Run) -> float:
    """Mean seconds of the run's clock in which a worker makes a step; NaN unless the run completed and took time."""
    time_s, samples = number(run.final("time_s")), number(run.final("samples"))
    if run.status != "completed" or not (time_s > 0 and samples > 0):
        return math.nan
    return time_s * number(run.nodes) * number(run.setting("batch_size")) / samples


def pairs(runs: Sequence[Run]) -> list[Pair]:
    """Every configuration that completed both simulated and for real, in order of first appearance.

    Such runs differ in nothing but the engine, the seed, and the numbers of the cluster, which real runs merely carry:
    its name must agree. Simulations with different numbers under one name are predictions of their own; those with the
    times of another network than the trained one are none.
    """
    measured: dict[_Configuration, list[Run]] = {}
    predicted: dict[tuple[_Configuration, _Configuration], tuple[Flat, Flat, list[Run]]] = {}
    for run, flat in _timed(runs):
        compared, cluster = _compared(flat), {key: text for key, text in flat.items() if _group(key) == "cluster"}
        configuration = frozenset(compared.items())
        if run.clock == "wall":
            measured.setdefault(configuration, []).append(run)
        else:
            place = (configuration, frozenset(cluster.items()))
            predicted.setdefault(place, (compared, cluster, []))[2].append(run)
    matched = [
        (compared, cluster, measured[configuration], simulated)
        for (configuration, _), (compared, cluster, simulated) in predicted.items()
        if configuration in measured
    ]
    algorithms = _algorithms([compared for compared, *_ in matched])
    clusters = _clusters([cluster for _, cluster, *_ in matched])
    return [
        Pair(clusters[i], algorithms[i] or real[0].algorithm, real[0].nodes, _timing(real), _timing(simulated))
        for i, (_, _, real, simulated) in enumerate(matched)
    ]


def why_no_pair(runs: Sequence[Run]) -> str:
    """What is missing: an engine, or configurations that agree."""
    timed = _timed(runs)
    simulated = [_compared(flat) for run, flat in timed if run.clock == "virtual"]
    real = [_compared(flat) for run, flat in timed if run.clock == "wall"]
    if not simulated:
        return "no completed run of engine=sim with the trained network's own times"
    if not real:
        return "no completed run of engine=dist"
    differing = (sorted(key for key in a | b if a.get(key) != b.get(key)) for a in simulated for b in real)
    return f"runs of engine=sim and engine=dist differ in more than the engine: {', '.join(min(differing, key=len))}"


def sentences(runs: Sequence[Run]) -> list[str]:
    """How predictions compare with measurements, in one sentence; none where there is no pair."""
    found = sorted(pairs(runs), key=lambda pair: pair.ratio)
    if not found:
        return []
    least, most = (f"{pair.ratio:.2f} ({_name(pair)})" for pair in (found[0], found[-1]))
    if len(found) == 1:
        return [f"time of a step, predicted over measured: {least}"]
    middle = median(pair.ratio for pair in found)
    return [f"time of a step, predicted over measured: {middle:.2f} in the median of {len(found)}, {least} to {most}"]


def print_pairs(found: Sequence[Pair], console: Console) -> None:
    """Print the pairs as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold", caption=CAPTION, caption_justify="left")
    for i, heading in enumerate(_COLUMNS):
        left = i < _TEXTS
        table.add_column(heading, justify="left" if left else "right", overflow="fold", no_wrap=not left)
    for pair in found:
        table.add_row(*(Text(shown(value)) for value in _values(pair)))
    console.print(table)


def write_pairs_csv(found: Sequence[Pair], path: str | Path) -> None:
    """One line per pair, numbers unrounded; empty where there is no value."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*_COLUMNS.values(), "measured_runs", "predicted_runs"])
        for pair in found:
            known = ["" if value != value else value for value in _values(pair)]  # NaN alone differs from itself
            writer.writerow([*known, len(pair.measured.steps_s), len(pair.predicted.steps_s)])


def write_pairs_markdown(found: Sequence[Pair], path: str | Path) -> None:
    """The table as on the terminal."""
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * _TEXTS + "---:|" * (len(_COLUMNS) - _TEXTS)]
    lines += ["| " + " | ".join(shown(value).replace("|", "\\|") for value in _values(pair)) + " |" for pair in found]
    Path(path).write_text("\n".join([*lines, "", CAPTION]) + "\n", encoding="utf-8")


def _timed(runs: Sequence[Run]) -> list[tuple[Run, Flat]]:
    timed = [run for run in runs if run.clock and run.time_model is None and not math.isnan(step_s(run))]
    return list(zip(timed, flatten(timed), strict=True))


def _group(key: str) -> str:
    return key.partition(".")[0]


def _compared(flat: Flat) -> Flat:
    """What must agree between a prediction and a measurement."""
    aside = ("engine", "cluster", "clock", "seed")
    return {key: text for key, text in flat.items() if key == "cluster.name" or _group(key) not in aside}


def _algorithms(flats: Sequence[Flat]) -> list[str]:
    """The algorithm and what else differs, but for nodes and cluster, which have columns of their own; the budget only
    where two would have one name without it."""
    names = _named_without(flats, "budget")
    places = {(flat.get("cluster.name"), flat.get("nodes"), name) for flat, name in zip(flats, names, strict=True)}
    configurations = {frozenset(flat.items()) for flat in flats}
    return names if len(places) == len(configurations) else _named_without(flats)


def _named_without(flats: Sequence[Flat], *groups: str) -> list[str]:
    aside = ("nodes", "cluster", *groups)
    bare = [{key: text for key, text in flat.items() if _group(key) not in aside} for flat in flats]
    algorithms = [flat.get("algo.name", "") for flat in bare]
    common = len(set(algorithms)) == 1  # then labels leave it out
    return [
        ", ".join(part for part in (algorithm if common else "", text) if part)
        for algorithm, text in zip(algorithms, label(bare), strict=True)
    ]


def _clusters(flats: Sequence[Flat]) -> list[str]:
    """The cluster's name, and the numbers that differ between clusters of that name."""
    titles = []
    for flat in flats:
        name = flat.get("cluster.name", "")
        namesakes = [other for other in flats if other.get("cluster.name", "") == name]
        titles.append(", ".join(part for part in (name, label(namesakes)[namesakes.index(flat)]) if part))
    return titles


def _timing(runs: Sequence[Run]) -> Timing:
    idle = [number(run.final("idle_fraction_mean")) for run in runs]
    return Timing(tuple(map(step_s, runs)), math.nan if any(map(math.isnan, idle)) else median(idle))


def _values(pair: Pair) -> list[str | int | float]:
    """A value per column."""
    nodes = math.nan if pair.nodes is None else pair.nodes
    steps_ms = [1e3 * timing.step_s for timing in (pair.measured, pair.predicted)]
    idle_percent = [100 * timing.idle for timing in (pair.measured, pair.predicted)]
    return [pair.cluster, pair.algorithm, nodes, *steps_ms, pair.ratio, *idle_percent]


def _name(pair: Pair) -> str:
    return ", ".join(part for part in (pair.algorithm, f"{pair.nodes} nodes", pair.cluster) if part)
