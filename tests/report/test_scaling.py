"""Time to target and speed-up over node counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsgd.record.reader import Run, find_runs
from dsgd.report.scaling import scalings, speed_up_figure
from dsgd.report.style import NoData
from tests.support.records import reach, write_record


def scaling_runs(top: Path, times: dict[tuple[str, int, int], float | None], **changes: Any) -> list[Run]:
    """Runs by (algorithm, nodes, seed) with the given times to target."""
    for (algo, nodes, seed), seconds in times.items():
        folder = write_record(top / f"{algo}-{nodes}-{seed}", algo, nodes=nodes, seed=seed, **changes)
        reach(folder, seconds)
    return find_runs([top])


def test_speed_up_is_the_base_time_over_the_time(tmp_path: Path):
    """12 s on one node and 3 s on eight is a speed-up of 4; over seeds the base is the mean of its times."""
    times = {("sync", 1, 0): 12.0, ("sync", 8, 0): 3.0, ("sync", 32, 0): None}
    times |= {("gossip", 1, seed): 10.0 + 4 * seed for seed in (0, 1)} | {("gossip", 8, seed): 2.0 for seed in (0, 1)}
    found = {one.label: one for one in scalings(scaling_runs(tmp_path, times))}
    assert found["sync"].speed_up() == {1: [1.0], 8: [4.0]}
    assert found["sync"].missed == [32]
    assert found["gossip"].speed_up() == {1: [1.2, 12 / 14], 8: [6.0, 6.0]}


def test_there_is_no_speed_up_over_a_run_that_missed_its_target(tmp_path: Path):
    runs = scaling_runs(tmp_path, {("sync", 1, 0): None, ("sync", 4, 0): 3.0, ("sync", 8, 0): 2.0})
    assert scalings(runs)[0].speed_up() == {}
    with pytest.raises(NoData, match="no algorithm reached its target at its smallest node count and at another"):
        speed_up_figure(runs)


def test_speed_up_says_relative_to_what(tmp_path: Path):
    """With a common smallest node count linear speed-up is drawn; without one there is no common reference."""
    runs = scaling_runs(tmp_path / "a", {("sync", 1, 0): 8.0, ("sync", 4, 0): 3.0})
    (axes,) = speed_up_figure(runs).axes
    assert axes.get_ylabel().replace("\n", " ") == "speed-up over the same algorithm on 1 node"
    assert axes.lines[-1].get_xydata().tolist() == [[1, 1], [4, 4]]  # pyright: ignore[reportAttributeAccessIssue]
    runs += scaling_runs(tmp_path / "b", {("gossip", 2, 0): 8.0, ("gossip", 4, 0): 3.0})
    (axes,) = speed_up_figure(runs).axes
    assert axes.get_ylabel().replace("\n", " ") == "speed-up over the same algorithm's smallest node count"
    assert len(axes.lines) == 2


def test_a_learning_rate_chosen_per_node_count_does_not_split_the_curve(tmp_path: Path):
    """lr 0.1 on 1 node and 0.4 on 4 is one curve; both rates on both node counts are two."""
    for nodes in (1, 4):
        write_record(tmp_path / "scaled" / str(nodes), nodes=nodes, **{"optimizer.lr": 0.1 * nodes})
        for lr in (0.1, 0.4):
            write_record(tmp_path / "crossed" / f"{nodes}-{lr}", nodes=nodes, **{"optimizer.lr": lr})
    assert [one.label for one in scalings(find_runs([tmp_path / "scaled"]))] == ["gossip"]
    assert [one.label for one in scalings(find_runs([tmp_path / "crossed"]))] == ["lr=0.1", "lr=0.4"]
