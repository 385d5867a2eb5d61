from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dsgd.cluster import Cluster
from dsgd.engines.rules.trace import COLOURS, spans_by_kind, trace_text
from dsgd.engines.sim.simulated import restore, snapshot
from dsgd.engines.sim.simulation import Simulation
from tests.support.cases import WAITING, prepared

OPTIONS = (
    "experiment=quadratic", "nodes=4", "budget.steps=12", "cluster.message_bytes=1e6", "cluster.jitter=0.3",
    "cluster.slow_nodes={1: 3.0}", "trace=true",
)  # fmt: skip


def read(path: Path) -> tuple[dict[int, str], dict[int, list[dict[str, Any]]]]:
    """Names and spans of the rows."""
    names: dict[int, str] = {}
    rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["ph"] == "M":
            names[event["tid"]] = event["args"]["name"]
        else:
            assert event["ph"] == "X"
            rows[event["tid"]].append(event)
    return names, rows


def run(case: tuple[str, ...], until: int | None = None, **fields: Any) -> tuple[list[dict[str, Any]], Simulation]:
    """The marks and the simulation, run to its end or to the event number `until`."""
    simulation = Simulation(dataclasses.replace(prepared(*OPTIONS, f"algo={case[0]}", *case[1:]), **fields))
    return list(simulation.run(lambda: until is not None and simulation.machine.loop.processed >= until)), simulation


@pytest.mark.parametrize("algo", WAITING)
def test_every_row_is_filled_by_disjoint_spans(algo: str, tmp_path: Path) -> None:
    """Of computing, communicating and waiting, from the start to the end. A trace changes nothing else."""
    marks, simulation = run((algo,))
    plain_marks, plain = run((algo,), trace=False)
    assert marks == plain_marks
    assert simulation.summary() == plain.summary()
    (tmp_path / "trace.json").write_text("".join(trace_text(simulation.trace_rows(), simulation.time_s)))
    names, rows = read(tmp_path / "trace.json")
    servers = simulation.experiment.algo.servers
    assert list(names.values()) == [f"worker {i}" for i in range(4)] + [f"server {i}" for i in range(servers)]
    end = simulation.time_s * 1e6
    for row in names:
        spans = sorted(rows[row], key=lambda span: span["ts"])
        assert {span["cat"] for span in spans} <= {"compute", "communication", "waiting"}
        assert all(span["dur"] > 0 for span in spans)
        assert spans[0]["ts"] == 0
        assert spans[-1]["ts"] + spans[-1]["dur"] == pytest.approx(end, rel=1e-12)
        for before, after in pairwise(spans):
            assert before["ts"] + before["dur"] == pytest.approx(after["ts"], rel=1e-12, abs=1e-6)
        computing = sum(span["dur"] for span in spans if span["cat"] == "compute")
        if row < 4:
            idle = simulation.machine.nodes[row].idle_fraction(simulation.time_s)
            assert computing == pytest.approx((1 - idle) * end, rel=1e-9)
        else:
            assert computing == 0


def test_a_span_is_what_it_says(tmp_path: Path) -> None:
    """sync without overlap, one slow node: the others wait for it, then all communicate for the time of the ring."""
    cluster = Cluster(0.01, 1e9, 1e-3, message_bytes=1e6, slow_nodes={1: 3.0}, collective="ring")
    case = ("sync", "algo.overlap=false")
    _, simulation = run(case, cluster=cluster)
    (tmp_path / "trace.json").write_text("".join(trace_text(simulation.trace_rows(), simulation.time_s)))
    ring = 2 * 3 * (1e-3 + 0.002)
    for row, spans in read(tmp_path / "trace.json")[1].items():
        total = {kind: sum(s["dur"] for s in spans if s["cat"] == kind) / 12e6 for kind in COLOURS}
        expected = [0.03, ring, 0.0] if row == 1 else [0.01, ring, 0.02]
        assert [total[kind] for kind in ("compute", "communication", "waiting")] == pytest.approx(expected, abs=1e-9)


def test_between_the_buckets_of_a_gradient_workers_wait() -> None:
    """sync on a fast network with a slow node: after its own gradient, a worker communicates each bucket when the slow
    node has it, and waits in between; the last bucket comes after the last gradient."""
    cluster = Cluster(0.01, 1e9, 0.0, message_bytes=1e6, slow_nodes={1: 3.0}, collective="ring", bucket_bytes=2.5e5)
    _, simulation = run(("sync",), cluster=cluster)
    part, end_s = 2 * 3 / 4 * 0.002, simulation.time_s
    fast, slow, *_ = [spans_by_kind(row, end_s) for row in simulation.trace_rows()]
    assert end_s == pytest.approx(12 * (0.03 + part))
    # the four buckets are ready after 15, 20, 25 and 30 ms
    ends = [(0.0, 0.01), (0.015, 0.015 + part), (0.02, 0.02 + part), (0.025, 0.025 + part), (0.03, 0.03 + part)]
    first = sorted([*fast["compute"][:1], *fast["communication"][:4]])
    assert [end for span in first for end in span] == pytest.approx([end for span in ends for end in span])
    assert sum(end - begin for begin, end in fast["waiting"]) == pytest.approx(12 * (0.02 - 3 * part))
    assert slow["waiting"] == []


def test_the_centre_of_a_star_has_a_row() -> None:
    cluster = Cluster(0.01, 1e9, 0.0, message_bytes=1e6, collective="star")
    _, simulation = run(("sync", "algo.overlap=false"), cluster=cluster)
    rows = simulation.trace_rows()
    assert [row.name for row in rows] == [*(f"worker {i}" for i in range(4)), "centre"]
    assert sum(end - begin for begin, end in rows[-1].communicating) == pytest.approx(12 * 2 * 4 * 0.008, rel=1e-9)
    assert rows[-1].computing == []


def test_the_trace_of_a_resumed_run_is_that_of_the_whole_run(tmp_path: Path) -> None:
    _, whole = run(("gossip",))
    _, stopped = run(("gossip",), until=whole.machine.loop.processed // 2)
    resumed = Simulation(stopped.experiment)
    restore(resumed, snapshot(stopped))
    assert list(resumed.run())
    for simulation, name in ((whole, "whole"), (resumed, "resumed")):
        (tmp_path / name).write_text("".join(trace_text(simulation.trace_rows(), simulation.time_s)))
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "resumed").read_bytes()
