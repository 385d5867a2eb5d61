"""Time to target and speed-up over node counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsgd.record.reader import Run, find_runs
from dsgd.report.scaling import Base, scalings, speed_up_base, speed_up_figure, time_to_target_figure
from dsgd.report.style import NoData
from tests.support.records import reach, write_record


def scaling_runs(top: Path, times: dict[tuple[str, int, int], float | None], **changes: Any) -> list[Run]:
    """Runs by (algorithm, nodes, seed) with the given times to target."""
    for (algo, nodes, seed), seconds in times.items():
        folder = write_record(top / f"{algo}-{nodes}-{seed}", algo, nodes=nodes, seed=seed, **changes)
        reach(folder, seconds)
    return find_runs([top])


def test_a_speed_up_has_one_base_for_all(tmp_path: Path):
    """The soonest on the smallest node count, in the median over seeds: 12 s of gossip, over whose 6 s is 2."""
    times = {("sync", 1, 0): 13.0, ("sync", 8, 0): 3.0, ("sync", 32, 0): None}
    times |= {("gossip", 1, seed): 10.0 + 2 * seed for seed in (0, 1, 2)} | {("gossip", 8, 0): 6.0}
    runs = scaling_runs(tmp_path, times)
    found = {one.label: one for one in scalings(runs)}
    end = next(run for run in runs if run.nodes == 32).final("time_s")
    assert found["sync"].missed == {32: end}
    assert speed_up_base(list(found.values())) == Base("gossip", 1, 12.0)
    (axes,) = speed_up_figure(runs).axes
    assert axes.get_ylabel().replace("\n", " ") == "speed-up over gossip on 1 node"
    drawn = [line.get_xydata().tolist() for line in axes.lines]  # pyright: ignore[reportAttributeAccessIssue]
    limit = [[32, 12.0 / end]]
    assert drawn == [[[1, 1], [8, 2]], [[1, 12 / 13], [8, 4]], limit, [[1, 1], [8, 8]]]
    assert [text.get_text() for text in axes.texts] == [f"< {12 / end:.3g}"]
    (times_axes,) = time_to_target_figure(runs).axes
    assert times_axes.lines[-1].get_xydata().tolist() == [[32, end]]  # pyright: ignore[reportAttributeAccessIssue]
    assert [text.get_text() for text in times_axes.texts] == [f"> {end:.3g} s"]


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
