"""Nodes that fail and come back: methods in lock-step stop until the repair, the others go on without them."""

from __future__ import annotations

import re
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dsgd.algorithms.adpsgd import ADPSGD
from dsgd.algorithms.downpour import Downpour
from dsgd.algorithms.gossip import Gossip
from dsgd.algorithms.sync import Sync
from dsgd.cluster import Cluster
from dsgd.cluster.failures import Failures
from dsgd.engines.sim.simulation import Simulation
from dsgd.streams import stream
from dsgd.topology import Ring
from dsgd.worker import Algorithm
from tests.support.cases import prepared
from tests.support.timing import timed

LOCKSTEP = (
    "sync", "sync algo.backups=1 algo.overlap=false", "dpsgd", "corrected", "choco", "delayfree algo.tau=2",
    "diloco algo.tau=3 algo.code=sparse algo.chunk=8 algo.kept=2", "streaming", "sparta", "noloco", "sgp",
    "gasloc algo.tau=3 algo.overlap=1",
    "easgd algo.variant=round_robin",
)  # fmt: skip
FREE = (
    "gossip algo.mode=push",
    "adpsgd",
    "easgd algo.variant=async",
    "downpour",
    "asyncdiloco",
    "decoupled",
    "asyncdiloco algo.c_ok=0.9",
)
SETTING = (
    "experiment=quadratic", "nodes=4", "cluster.gradient_s=0.01", "cluster.message_bytes=1e5", "engine.threads=1",
)  # fmt: skip
N, B = 1e6, 8e6  # bytes of a message; bit/s: one takes a second


def cluster(**fields: Any) -> Cluster:
    return Cluster(**{"gradient_s": 1.0, "bandwidth": B, "latency_s": 0.0, "message_bytes": N, **fields})


def trace(folder: Path, *outages: tuple[int, float, float]) -> dict[str, str]:
    path = folder / "outages.csv"
    path.write_text("\n".join(["node,down_s,up_s", *(f"{node},{down},{up}" for node, down, up in outages)]))
    return {"trace": str(path)}


def simulated(*words: str) -> Simulation:
    simulation = Simulation(prepared(*SETTING, *words))
    for _ in simulation.run():
        pass
    return simulation


def vectors(simulation: Simulation) -> torch.Tensor:
    return torch.stack([node.worker.x for node in simulation.machine.nodes])


def test_sync_stops_until_the_repair_and_computes_the_lost_gradient_again(tmp_path: Path) -> None:
    """Steps of 1 s and an all-reduce of 1 s for two nodes. The second gradient, begun at 2, is lost at 2.5; the node is
    up at 7, has its parameters at 8, and is done at 9: 6 s later than at 3."""
    plain = timed(Sync(overlap=False), cluster(), nodes=2, steps=3)
    failing = cluster(failures=trace(tmp_path, (1, 2.5, 7.0)))
    late = timed(Sync(overlap=False), failing, nodes=2, steps=3)
    assert plain.time_s == pytest.approx(6.0, rel=1e-12)
    assert late.time_s == pytest.approx(12.0, rel=1e-12)
    summary = late.summary()
    assert (summary["failures"], summary["lost_work_s"]) == (1, pytest.approx(0.5))
    assert summary["goodput"] == pytest.approx(1 - (8.0 - 2.0) / 12.0)
    assert "goodput" not in plain.summary()


def test_an_outage_between_two_gradients_costs_what_it_delays(tmp_path: Path) -> None:
    """Both are down from 1.2 s on, in the all-reduce, which ends at 2: node 1 has its parameters at 4."""
    failures = trace(tmp_path, (0, 1.2, 1.5), (1, 1.2, 3.0))
    fast = cluster(bandwidth=2.5 * B, collective="ring", message_bytes=2.5 * N, failures=failures)
    late = timed(Sync(overlap=False), fast, nodes=2, steps=2)
    assert late.time_s == pytest.approx(6.0, rel=1e-12)
    assert (late.summary()["failures"], late.summary()["lost_work_s"]) == (2, 0.0)


@pytest.mark.parametrize("algo", LOCKSTEP)
def test_in_lockstep_failures_change_times_and_nothing_else(algo: str, tmp_path: Path) -> None:
    words = (f"algo={algo.split()[0]}", *algo.split()[1:], "budget.steps=12", "eval.every_steps=null")
    failures = trace(tmp_path, (1, 0.025, 1.0), (2, 1.03, 2.0))
    plain, failing = simulated(*words), simulated(*words, f"cluster.failures.trace={failures['trace']}")
    if "backups=1" in algo:  # does without the node that is down
        assert (failing.summary()["failures"], failing.time_s < 1.0) == (1, True)
        return
    assert failing.summary()["failures"] == 2
    assert torch.equal(vectors(plain), vectors(failing))
    assert failing.time_s >= plain.time_s + 0.95  # noloco has no average in so few steps: both outages at once
    assert failing.summary()["goodput"] < 0.2


@pytest.mark.parametrize("algo", FREE)
def test_free_running_methods_go_on_without_a_node_that_is_down(algo: str, tmp_path: Path) -> None:
    """Of 400 steps in all node 1 makes few: it is down for most of the run, and the others do its part."""
    words = (f"algo={algo.split()[0]}", *algo.split()[1:], "budget.steps=100", "eval.every_steps=null")
    failures = trace(tmp_path, (1, 0.105, 1.1))
    plain, failing = simulated(*words), simulated(*words, f"cluster.failures.trace={failures['trace']}")
    steps = [node.worker.steps for node in failing.machine.nodes]
    assert (sum(steps), failing.status) == (400, "completed")
    assert steps[1] < 60 < min(steps[0], *steps[2:])
    assert 1.0 < failing.time_s / plain.time_s < 1.6
    summary = failing.summary()
    assert (summary["failures"], 0 < summary["lost_work_s"] <= 0.02) == (1, True)
    down_s = failing.machine.downtime.down[0][2] - 0.105  # type: ignore[union-attr]
    assert down_s >= 0.995 + 2e-4 + 8e5 / 1e9  # the repair, a request, and the parameters
    assert summary["goodput"] == pytest.approx(1 - (down_s + summary["lost_work_s"]) / (4 * failing.time_s))
    assert not failing.machine.nodes[1].down
    assert torch.isfinite(vectors(failing)).all()


def test_a_worker_comes_back_with_the_parameters_of_a_peer_or_of_the_servers(tmp_path: Path) -> None:
    """As they were when they were sent: the peer has made a step or two until they arrive."""
    for algo, options in (("gossip", "algo.tau=1000 cluster.bandwidth=4e7"), ("downpour", "algo.n_fetch=1000")):
        failures = trace(tmp_path, (1, 0.105, 0.2))
        words = (f"algo={algo}", *options.split(), "eval.every_steps=null")
        simulation = Simulation(prepared(*SETTING, *words, f"cluster.failures.trace={failures['trace']}"))
        node = simulation.machine.nodes[1]
        for _ in simulation.run(interrupt=lambda n=node, m=simulation.machine: m.loop.now > 0.2 and not n.down):
            pass
        restored = node.published[0]
        others = [n.worker.x for k, n in enumerate(simulation.machine.nodes) if k != 1]
        sources = [simulation.machine.shards[0].server.x] if algo == "downpour" else others
        assert min(float((restored - source).norm()) for source in sources) < 0.1 * float(restored.norm())
        assert algo == "downpour" or not any(torch.equal(restored, source) for source in sources)
        assert node.worker.steps < 15


def test_all_workers_may_be_down_at_once(tmp_path: Path) -> None:
    failures = trace(tmp_path, *((node, 0.105, 0.5) for node in range(4)))
    simulation = simulated("algo=gossip", "budget.steps=50", f"cluster.failures.trace={failures['trace']}")
    assert (simulation.status, simulation.summary()["failures"]) == ("completed", 4)


def test_a_free_running_step_costs_its_share_of_a_restart(tmp_path: Path) -> None:
    """One worker alone with a server: it fetches N in 1 s, computes 1 s and pushes N in 1 s. It fails at 7.5, in its
    third gradient, begun at 7; it is up at 10, has asked and N at 11, fetches again, and is done at 12 + 1 + 1."""
    failing = cluster(failures=trace(tmp_path, (0, 7.5, 10.0)))
    late = timed(Downpour(), failing, nodes=1, steps=3)
    assert timed(Downpour(), cluster(), nodes=1, steps=3).time_s == pytest.approx(9.0)
    assert late.time_s == pytest.approx(14.0)
    assert late.summary()["lost_work_s"] == pytest.approx(0.5)


@pytest.mark.parametrize("algo", [Gossip(), ADPSGD(Ring().build(2, 0)), Downpour()])
def test_answers_to_a_worker_that_has_failed_are_not_received(algo: Algorithm, tmp_path: Path) -> None:
    """Messages take as long as gradients, and the outages of a worker begin at ten different moments of its steps."""
    failures = trace(tmp_path, *((0, 7.3 * k, 7.3 * k + 3 + 0.17 * k) for k in range(1, 11)))
    received: list[int] = []

    def look(simulation: Simulation) -> bool:
        node = simulation.machine.nodes[0]
        if node.down:
            received.append(node.received)
        return False

    timed(algo, cluster(failures=failures), nodes=2, steps=25, interrupt=look)
    assert len(received) > 20
    assert set(received) == {0}


def test_random_failures_have_the_given_times() -> None:
    """Exponential gaps; log-normal repairs of a given mean and median. Within five standard errors."""
    failures = Failures.from_entry({"every_s": 50.0, "repair_s": 13.3, "repair_median_s": 2.0})
    outages = np.array(list(islice(failures.outages_of(0, stream("failures", 0, 0)), 20_000)))
    gaps = np.diff(outages.flatten())[1::2]
    repairs = outages[:, 1] - outages[:, 0]
    assert gaps.mean() == pytest.approx(50.0, abs=5 * 50.0 / 20_000**0.5)
    assert gaps.std() == pytest.approx(50.0, rel=0.1)
    assert np.median(repairs) == pytest.approx(2.0, rel=5 * 1.2533 * 1.947 / 20_000**0.5)
    assert repairs.mean() == pytest.approx(13.3, rel=0.35)  # sigma is 1.95: the tail weighs
    assert all(earlier[1] < later[0] for earlier, later in pairwise(outages[:100]))


@pytest.mark.parametrize(
    ("outages", "rule"),
    [
        ([(0, 2.0, 1.0)], "must have 0 <= down_s < up_s <= 1e+09 on every line, got 2 and 1 ("),
        ([(0, 1.0, 3.0), (0, 2.0, 4.0)], "must have outages of a node one after the other, got node 0 down at 2"),
    ],
)
def test_wrong_outages_are_one_line(outages: Any, rule: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^failures {re.escape(rule)}"):
        cluster(failures=trace(tmp_path, *outages))


def test_a_repair_must_not_outlast_the_budget_nor_name_a_node_that_there_is_not(tmp_path: Path) -> None:
    rule = r"^cluster\.failures: repair_s must be <= budget\.time_s \(10\), got 20$"
    with pytest.raises(ValueError, match=rule):
        prepared(*SETTING, "budget.time_s=10", "cluster.failures={every_s: 5, repair_s: 20}")
    long = trace(tmp_path, (1, 1.0, 20.0))["trace"]
    with pytest.raises(ValueError, match=r"^cluster\.failures must have no outage that is longer than budget\.time_s"):
        prepared(*SETTING, "budget.time_s=10", f"cluster.failures.trace={long}")
    with pytest.raises(
        ValueError, match=r"^cluster\.failures must name nodes in 0\.\.3 \(nodes=4\), got 7 in its trace$"
    ):
        prepared(*SETTING, f"cluster.failures.trace={trace(tmp_path, (7, 1.0, 2.0))['trace']}")
