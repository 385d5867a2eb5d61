"""Predicted against measured: the step time the simulator foretells beside the one that real processes took."""

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

from dsgd.report.labels import Flat, flatten, label
from dsgd.report.runs import Run, number
from dsgd.report.table import shown

HEADINGS = (
    "cluster",
    "algorithm",
    "nodes",
    "measured step (ms)",
    "predicted step (ms)",
    "predicted/measured",
    "idle measured (%)",
    "idle predicted (%)",
)
CAPTION = (
    "step: mean time a worker needs for one; measured: wall time of engine=dist; predicted: virtual time of engine=sim; "
    "medians where there are several runs of a kind"
)

_CLUSTER = "cluster.name"


@dataclass(frozen=True)
class Timing:
    """The runs of one configuration on one engine. steps_s: seconds per step of each, [runs]. idle: the median of their
    mean idle shares, a fraction; NaN if unknown."""

    steps_s: list[float]
    idle: float

    @property
    def step_s(self) -> float:
        return median(self.steps_s)


@dataclass(frozen=True)
class Pair:
    """One configuration, simulated and run for real. cluster and algorithm name what is particular to it."""

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
    """Mean seconds, of the run's clock, that a worker needs for a step; NaN unless the run completed and took time."""
    time_s, samples = number(run.final("time_s")), number(run.final("samples"))
    if run.status != "completed" or not (time_s > 0 and samples > 0):
        return math.nan
    return time_s * number(run.nodes) * number(run.setting("batch_size")) / samples


def pairs(runs: Sequence[Run]) -> list[Pair]:
    """Every configuration that was both simulated and run for real, in order of first appearance.

    Such runs differ in nothing but the engine, the seed, and the cluster's numbers, which real runs merely carry: the
    cluster's name must agree. Simulations under one name with different numbers are predictions of their own. Runs
    that did not complete are left out."""
    timed = _timed(runs)
    measured: dict[frozenset[tuple[str, str]], list[Run]] = {}
    predicted: dict[tuple[frozenset[tuple[str, str]], ...], tuple[Flat, Flat, list[Run]]] = {}
    for run, flat in timed:
        kept, cluster = _configuration(flat), {key: text for key, text in flat.items() if _group(key) == "cluster"}
        configuration = frozenset(kept.items())
        if run.clock == "wall":
            measured.setdefault(configuration, []).append(run)
        else:
            key = (configuration, frozenset(cluster.items()))
            predicted.setdefault(key, (kept, cluster, []))[2].append(run)
    both = [(measured[key[0]], *prediction) for key, prediction in predicted.items() if key[0] in measured]
    algorithms = _algorithms([kept for _, kept, _, _ in both])
    clusters = _clusters([cluster for _, _, cluster, _ in both])
    return [
        Pair(cluster, algorithm or real[0].algorithm, real[0].nodes, _timing(real), _timing(simulated))
        for (real, _, _, simulated), algorithm, cluster in zip(both, algorithms, clusters, strict=True)
    ]


def why_unpaired(runs: Sequence[Run]) -> str:
    """What is missing where there is no pair: an engine, or configurations that agree."""
    timed = _timed(runs)
    sides = [
        [_configuration(flat) for run, flat in timed if (run.clock == "wall") == real] for real in (False, True)
    ]
    for engine, side in zip(("sim", "dist"), sides, strict=True):
        if not side:
            return f"no completed run of engine={engine} to compare with the other engine"
    differing = [
        sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key)) for a in sides[0] for b in sides[1]
    ]
    return f"the runs of the two engines differ in more than the engine: {', '.join(min(differing, key=len))}"


def sentences(runs: Sequence[Run]) -> list[str]:
    """How far predictions are from measurements, in one sentence; none where there is no pair."""
    found = sorted(pairs(runs), key=lambda pair: pair.ratio)
    if not found:
        return []
    ends = [f"{pair.ratio:.2f} ({_name(pair)})" for pair in dict.fromkeys(map(_Identity, (found[0], found[-1])))]
    return []


def print_pairs(found: Sequence[Pair], console: Console) -> None:
    """Print the table of the pairs."""
