"""Make the runs that predict what others measured, and the page that holds one against the other."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsgd.cli.compose import composed
from dsgd.cli.folders import check_writable, folder_lock
from dsgd.engines.sim.simulation import Simulation
from dsgd.host.signals import Interruption
from dsgd.runner.configuration import configure
from studies.yardstick.measured_table import GRID, TIMING, MeasuredRow, tables
from studies.yardstick.yardstick_page import read, write

YARDSTICK = "yardstick"
RESULTS = "results/yardstick"


def write_yardstick(results: Path, redraw: bool, interruption: Interruption) -> None:
    """Run every row of every table, unless only the page is to be drawn again, and write it. Prints the result.

    Raises ValueError for a configuration that is wrong, or if there is nothing to draw."""
    known = tables()
    check_writable(results, "--results")
    predictions = read(results, known) if redraw else None
    if redraw and predictions is None:
        raise ValueError(f"--redraw needs the runs of these tables in {results}, got none; without it they are made")
    with folder_lock(results, "--results"):
        if predictions is None:
            predictions = {benchmark.key: list[float]() for benchmark in known}
            for benchmark in known:
                for row in benchmark.rows:
                    interruption.check()
                    predictions[benchmark.key].append(predict(row, composed([*TIMING, *row.overrides])))
        print(write(results, known, predictions))


def predict(row: MeasuredRow, values: Mapping[str, Any]) -> float:
    """Return what a row measures, by runs of its configuration as plain values. Raises ConfigError."""
    if row.reads != "needed":
        return row.predicted(timed(values))

    def is_enough(bandwidth: float) -> bool:
        summary = timed({**values, "cluster": {**values["cluster"], "bandwidth": bandwidth}})
        return 1 - summary["idle_fraction_mean"] >= row.share

    return GRID[bisect_left(GRID, True, hi=len(GRID) - 1, key=is_enough)] / 1e9


def timed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a run without gradients, of its configuration as plain values. Raises ConfigError."""
    simulation = Simulation(configure(values).experiment)
    for _ in simulation.run():
        pass
    return dict(simulation.summary())
