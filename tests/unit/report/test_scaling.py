"""Time to target and speed-up over node counts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from dsgd.comparison.contenders import contender_scalings
from dsgd.record.reader import Run, find_runs
from dsgd.report.look import Look
from dsgd.report.scaling import (
    scaling_figure,
    scalings,
    soonest_base,
    speed_up_figure,
    time_to_target_figure,
    write_scaling,
)
from dsgd.report.sheet import NOTE
from dsgd.report.style import NoData
from dsgd.report.table_layout import shown
from tests.support.arrows import direction
from tests.support.contenders import contender
from tests.support.records import reach, write_record


def scaling_runs(top: Path, times: Mapping[tuple[str, int, int], float | None], **changes: Any) -> list[Run]:
    """Runs by (algorithm, nodes, seed) with the given times to target."""
    for (algo, nodes, seed), seconds in times.items():
        folder = write_record(top / f"{algo}-{nodes}-{seed}", algo, nodes=nodes, seed=seed, **changes)
        reach(folder, seconds)
    return find_runs([top])


def drawn_points(axes: Axes) -> list[list[list[float]]]:
    """The points of each line, without gaps."""
    lines = [np.asarray(line.get_xydata()) for line in axes.lines]
    return [points[~np.isnan(points[:, 1])].tolist() for points in lines]


def test_a_speed_up_has_one_base_for_all(tmp_path: Path):
    """The soonest on the smallest node count, in the median over seeds: 12 s of gossip. Speed-ups are paired by seed:
    6 s with seed 0, with which gossip took 10 s there, is 10 / 6; what missed has a mark, and no speed-up of 0."""
    times = {("sync", 1, 0): 13.0, ("sync", 8, 0): 3.0, ("sync", 32, 0): None}
    times |= {("gossip", 1, seed): 10.0 + 2 * seed for seed in (0, 1, 2)} | {("gossip", 8, 0): 6.0}
    runs = scaling_runs(tmp_path, times)
    end = next(run for run in runs if run.nodes == 32).final("time_s")
    base = soonest_base(scalings(runs))
    assert (base.label, base.nodes) == ("gossip on 1 node", 1)
    (axes,) = speed_up_figure(runs).axes
    assert axes.get_ylabel().replace("\n", " ") == "speed-up over gossip on 1 node"
    drawn = drawn_points(axes)
    assert drawn == [
        [[1, 1], [8, 10 / 6]],
        [[1, 10 / 13], [8, 10 / 3]],
        [[32, pytest.approx(10 / end)]],
        [[1, 1], [8, 8]],
    ]
    marked = axes.lines[2]
    assert (direction(marked), marked.get_linestyle()) == ("v", "None")
    assert [text.get_text() for text in axes.texts] == [f"< {10 / end:.3g}"]
    (times_axes,) = (figure := time_to_target_figure(runs)).axes
    assert drawn_points(times_axes)[-1] == [[32, end]]
    assert [text.get_text() for text in times_axes.texts] == [f"> {end:.3g} s"]
    assert NOTE in figure.legends[0].get_title().get_text()


def test_there_is_no_speed_up_over_a_run_that_missed_its_target(tmp_path: Path):
    runs = scaling_runs(tmp_path, {("sync", 1, 0): None, ("sync", 4, 0): 3.0, ("sync", 8, 0): 2.0})
    with pytest.raises(NoData, match=r"^no run on the smallest number of nodes, 1, reached its target$"):
        speed_up_figure(runs)


def test_a_learning_rate_chosen_per_node_count_does_not_split_the_curve(tmp_path: Path):
    """lr 0.1 on 1 node and 0.4 on 4 is one curve; both rates on both node counts are two."""
    for nodes in (1, 4):
        write_record(tmp_path / "scaled" / str(nodes), nodes=nodes, **{"optimizer.lr": 0.1 * nodes})
        for lr in (0.1, 0.4):
            write_record(tmp_path / "crossed" / f"{nodes}-{lr}", nodes=nodes, **{"optimizer.lr": lr})
    assert [one.label for one in scalings(find_runs([tmp_path / "scaled"]))] == ["gossip"]
    assert [one.label for one in scalings(find_runs([tmp_path / "crossed"]))] == ["lr=0.1", "lr=0.4"]


def test_efficiency_is_the_speed_up_for_each_node_of_the_base(tmp_path: Path):
    """Four times the nodes are 3 times as fast: 75 %; tuned rates that differ by node count are one line."""
    contenders = [
        contender("sync, 2 nodes", [12.0, 24.0, 18.0], nodes=2, lr=0.1),
        contender("sync, 8 nodes", [4.0, 8.0, 6.0], nodes=8, lr=0.4),
        contender("gossip, 2 nodes", [24.0, 48.0, 36.0], nodes=2),
        contender("gossip, 8 nodes", [12.0, 24.0, math.inf], nodes=8),
        contender("easgd, 2 nodes", [90.0, 90.0, 90.0], nodes=2),  # on one number of nodes: nothing scales
    ]
    found = contender_scalings(contenders)
    table = write_scaling(found, tmp_path / "scaling", Look(formats=["svg"]))
    assert [row[:2] for row in table.rows] == [["sync", 2], ["sync", 8], ["gossip", 2], ["gossip", 8]]
    assert [shown(row[3]) for row in table.rows] == ["1.000", "3.000", "0.5000", "1.000 [< 0.1800, 1.000]"]
    assert [shown(row[4]).split()[0] for row in table.rows] == ["1.000", "0.7500", "0.5000", "0.2500"]
    left, right = scaling_figure(found).axes
    assert left.get_ylabel().replace("\n", " ") == "speed-up over sync on 2 nodes"
    assert [[2, 1], [8, 0.75]] in drawn_points(right)
