"""Simulated runs beside real ones: which are paired, what the table says, and that two clocks are never mixed."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest

from dsgd.record.reader import find_runs
from dsgd.report.figures import predicted_figure
from dsgd.report.prediction import Pair, median_step_s, pairs, pairs_table, step_s
from dsgd.report.scaling import scalings
from dsgd.report.style import NoData
from dsgd.report.table import summary_sentences
from tests.support.each_row import each_row
from tests.support.records import reach, rewrite, write_record

# The keys of the two differ, as those of the engines do.
SIM = {"name": "sim", "gradients": "loop", "threads": 1, "checkpoint_every_s": None}
DIST = {"name": "dist", "threads": 1, "checkpoint_every_s": 60, "timeout_s": 60}
AUTO = {"name": "auto", "threads": 1}


def write_run(folder: Path, algo: str, step_ms: float, real: bool, **changes: Any) -> Path:
    """A record whose workers need step_ms for each of 100 steps; nodes, batch size, seed, ... as changes."""
    idle, status = changes.pop("idle", 0.25), changes.get("status", "completed")
    changes = {"engine": DIST if real else SIM, "cluster.name": "lan", "clock": "wall" if real else "virtual"} | changes
    write_record(folder, algo, marks=5, **changes)
    samples = 100 * changes.get("nodes", 8) * changes.get("batch_size", 16)
    if status != "running":
        summary = {"time_s": step_ms / 10, "samples": samples, "idle_fraction_mean": idle}
        rewrite(folder, {}, summary)
    return folder


def write_pair(top: Path, algo: str, measured_ms: float, predicted_ms: float, **changes: Any) -> None:
    top.mkdir(parents=True, exist_ok=True)
    place = top / f"{len(list(top.iterdir()))}"
    write_run(place / "real", algo, measured_ms, True, **changes)
    write_run(place / "simulated", algo, predicted_ms, False, **changes)


def shape(pair: Pair) -> tuple[str, str, int | None]:
    return pair.cluster, pair.algorithm, pair.nodes


# --- pairing ---------------------------------------------------------------------------------------------------------


def test_the_ratio_is_that_of_medians_over_seeds_and_repetitions(tmp_path: Path):
    """Measured 10, 12 and 40 ms, predicted 9 and 15 ms: medians 12 and 12, and one pair."""
    for i, (step_ms, idle) in enumerate([(10.0, 0.1), (12.0, 0.2), (40.0, 0.6)]):
        write_run(tmp_path / f"real{i}", "gossip", step_ms, True, seed=i // 2, idle=idle)
    for i, step_ms in enumerate([9.0, 15.0]):
        write_run(tmp_path / f"simulated{i}", "gossip", step_ms, False, seed=7 + i, idle=0.3)
    (pair,) = pairs(find_runs([tmp_path]))
    assert shape(pair) == ("lan", "gossip", 8)
    assert (median_step_s(pair.measured), median_step_s(pair.predicted)) == pytest.approx((0.012, 0.012), rel=1e-12)
    assert pair.ratio == pytest.approx(1.0, rel=1e-12)
    assert (len(pair.measured), len(pair.predicted)) == (3, 2)
    assert pairs_table([pair]).rows[0][-2:] == [20, 30]


@each_row(
    ("key", "value"),
    [("nodes", 4), ("algo.tau", 5), ("model.hidden", [128]), ("optimizer.momentum", 0.0), ("cluster.name", "wan")],
)
def test_runs_that_differ_in_more_than_the_engine_are_no_pair(key: str, value: Any, tmp_path: Path):
    """... and the reason names the key."""
    write_run(tmp_path / "real", "gossip", 10.0, True)
    write_run(tmp_path / "simulated", "gossip", 10.0, False, **{key: value})
    runs = find_runs([tmp_path])
    assert pairs(runs) == []
    with pytest.raises(NoData, match=rf"^runs of engine=sim and engine=dist differ in more than the engine: {key}$"):
        predicted_figure(runs)


@each_row(("key", "value"), [("seed", 3), ("cluster.bandwidth", 1e3), ("engine", AUTO), ("resume", "there")])
def test_runs_are_a_pair_whatever_else_they_differ_in(key: str, value: Any, tmp_path: Path):
    """A real run carries the cluster's numbers without using them; `auto` is told by its clock."""
    write_run(tmp_path / "real", "gossip", 10.0, True, **{key: value})
    write_run(tmp_path / "simulated", "gossip", 5.0, False)
    assert [pair.ratio for pair in pairs(find_runs([tmp_path]))] == [pytest.approx(0.5, rel=1e-12)]


def test_pairs_are_told_apart_by_cluster_nodes_and_what_differs(tmp_path: Path):
    for cluster in ("lan", "wan"):
        write_pair(tmp_path, "sync", 10.0, 10.0, **{"cluster.name": cluster})
    write_pair(tmp_path, "sync", 10.0, 10.0, nodes=4)
    write_pair(tmp_path, "gossip", 10.0, 10.0, **{"algo.tau": 1})
    write_pair(tmp_path, "gossip", 10.0, 10.0, **{"algo.tau": 5})
    assert list(map(shape, pairs(find_runs([tmp_path])))) == [
        ("lan", "sync", 8),
        ("wan", "sync", 8),
        ("lan", "sync", 4),
        ("lan", "gossip, tau=1", 8),
        ("lan", "gossip, tau=5", 8),
    ]


def test_different_numbers_under_one_cluster_name_are_predictions_of_their_own(tmp_path: Path):
    """Their median would be a prediction for a network that nobody described."""
    write_run(tmp_path / "real", "sync", 10.0, True)
    for i, bandwidth in enumerate((1e8, 1e9)):
        write_run(tmp_path / f"{i}", "sync", 10.0 + 5 * i, False, **{"cluster.bandwidth": bandwidth})
    found = {pair.cluster: pair.ratio for pair in pairs(find_runs([tmp_path]))}
    assert found == {"lan, bandwidth=100 Mbit/s": pytest.approx(1.0), "lan, bandwidth=1 Gbit/s": pytest.approx(1.5)}


@each_row("status", ["failed", "diverged", "interrupted", "running"])
def test_a_run_that_did_not_complete_is_no_measurement(status: str, tmp_path: Path):
    write_run(tmp_path / "real", "sync", 10.0, True, status=status)
    write_run(tmp_path / "simulated", "sync", 10.0, False)
    runs = find_runs([tmp_path])
    assert math.isnan(step_s(runs[0]))
    with pytest.raises(NoData, match=r"^no completed run of engine=dist$"):
        predicted_figure(runs)
    with pytest.raises(NoData, match=r"^no completed run of engine=sim with the trained network's own times$"):
        predicted_figure(runs[:1])


# --- the table and the figure ----------------------------------------------------------------------------------------


def test_the_table_holds_milliseconds_ratio_and_idle_shares(tmp_path: Path):
    write_pair(tmp_path / "runs", "sync", 12.5, 10.0, idle=0.5)
    write_pair(tmp_path / "runs", "gossip", 8.0, 10.0, idle=None)
    found = pairs(find_runs([tmp_path / "runs"]))
    pairs_table(found).write(tmp_path / "predicted")
    lines = (tmp_path / "predicted.md").read_text().splitlines()
    assert lines[0].startswith("| cluster | algorithm | nodes | measured step (ms) | predicted step (ms) | pred")
    assert lines[2] == "| lan | sync | 8 | 12.50 | 10.00 | 0.8000 | 50.00 | 50.00 |"
    assert lines[3] == "| lan | gossip | 8 | 8.000 | 10.00 | 1.250 | - | - |"
    with (tmp_path / "predicted.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert float(first["predicted_over_measured"]) == found[0].ratio
    assert float(first["measured_step_ms"]) == pytest.approx(12.5, rel=1e-12)
    assert (second["measured_idle_percent"], second["predicted_runs"]) == ("", "1")


# --- two clocks ------------------------------------------------------------------------------------------------------


def test_wall_and_virtual_time_are_no_one_curve_over_node_counts(tmp_path: Path):
    """A simulation of 1 node and a real run of 4: the engine follows from the node count, and yet separates."""
    write_run(tmp_path / "a", "sync", 10.0, False, nodes=1)
    write_run(tmp_path / "b", "sync", 10.0, True, nodes=4)
    for folder in ("a", "b"):
        reach(tmp_path / folder, 3.0)
    assert [(one.label, list(one.by_nodes)) for one in scalings(find_runs([tmp_path]))] == [
        ("engine=sim", [1]),
        ("engine=dist", [4]),
    ]


def test_the_verdict_compares_times_of_one_clock(tmp_path: Path):
    """Real runs took their time on some machine; a simulation that is sooner has won nothing against them."""
    times = {("sync", True): 4.0, ("gossip", True): 2.0, ("sync", False): 0.3, ("gossip", False): 0.6}
    for (algo, real), seconds in times.items():
        folder = write_run(tmp_path / f"{algo}{real}", algo, 10.0, real, idle=seconds / 10)
        reach(folder, seconds)
    runs = find_runs([tmp_path])
    goal = "reaches a test accuracy of 0.9 first, after"
    assert summary_sentences(runs)[:4] == [
        f"sync, engine=sim {goal} 0.3 s of virtual time; times as long, seed by seed: gossip, engine=sim 2.00",
        f"gossip, engine=dist {goal} 2 s of wall time on the machine it ran on; "
        "times as long, seed by seed: sync, engine=dist 2.00",
        "gossip, engine=sim waits most, its workers are idle 6% of the time; sync, engine=sim least, 3%",
        "sync, engine=dist waits most, its workers are idle 40% of the time; gossip, engine=dist least, 20%",
    ]
    measured = "time of a step, predicted over measured: 1.00 in the median of 2, 1.00 ("
    assert summary_sentences(runs)[4].startswith(measured)
    real = [run for run in runs if run.clock == "wall"]
    assert (
        summary_sentences(real)[0]
        == f"gossip {goal} 2 s of wall time on the machine it ran on; times as long, seed by seed: sync 2.00"
    )


def test_wall_time_is_never_that_of_another_network(tmp_path: Path):
    """Real runs take their own, and a simulation with a stated network's times predicts nothing for them."""
    for name, real in (("a", True), ("b", False)):
        write_run(tmp_path / name, "sync", 10.0, real, time_model="ResNet-18 on ImageNet")
    runs = find_runs([tmp_path])
    assert [run.time_model for run in runs] == [None, "ResNet-18 on ImageNet"]
    with pytest.raises(NoData, match=r"^no completed run of engine=sim with the trained network's own times$"):
        predicted_figure(runs)
