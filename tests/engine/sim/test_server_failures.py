"""Servers that fail: what comes meanwhile waits, and they come back with the state of a replica or of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dsgd.algorithms.downpour import Downpour
from dsgd.algorithms.easgd import EASGD
from dsgd.engines.sim.simulation import Simulation
from dsgd.worker import Algorithm
from tests.engine.sim.test_failures import SETTING, cluster, simulated, trace
from tests.support.cases import prepared
from tests.support.timing import timed


def test_a_push_waits_until_the_server_has_its_state_again(tmp_path: Path) -> None:
    """One worker fetches N in 1 s, computes 1 s and pushes N in 1 s. Its first push arrives at 3, in the outage; the
    server is up at 6 and has its state at 7. A step is a checkpoint late, which changes no time."""
    failures = trace(tmp_path, (1, 2.5, 6.0)) | {"server_checkpoint_s": 2.0}
    for steps, end_s in ((1, 7.0), (2, 10.0), (3, 13.0)):
        simulation = timed(Downpour(), cluster(failures=failures), nodes=1, steps=steps)
        assert simulation.time_s == pytest.approx(end_s, rel=1e-12)
    summary = simulation.summary()
    assert (summary["failures"], summary["lost_updates"]) == (1, 0)
    assert summary["goodput"] == pytest.approx(1 - (7.0 - 2.5) / 13.0)


@pytest.mark.parametrize("algo", [Downpour(servers=2), EASGD(tau=1, servers=2)], ids=["downpour", "easgd"])
def test_a_worker_needs_all_shards(algo: Algorithm, tmp_path: Path) -> None:
    """Shard 1 alone is down, for 10 s: both workers wait for it."""
    plain = timed(algo, cluster(), nodes=2, steps=9)
    failures = trace(tmp_path, (3, 0.5, 10.5)) | {"server_checkpoint_s": 0}
    late = timed(algo, cluster(failures=failures), nodes=2, steps=9)
    assert plain.time_s + 7 < late.time_s <= plain.time_s + 10.5 + 1e-9


def test_a_colocated_shard_fails_with_its_node(tmp_path: Path) -> None:
    """Node 1 has a shard: while it is down node 0 makes no step. Without failures of servers it goes on alone."""
    algo, outage = Downpour(servers=2), trace(tmp_path, (1, 1.5, 50.0))
    alone, waiting = (
        timed(algo, cluster(failures=failures, servers_colocated=True), nodes=2, steps=9)
        for failures in (outage, outage | {"server_checkpoint_s": 0})
    )
    assert alone.time_s < 50 < waiting.time_s
    assert waiting.summary()["failures"] == 2


@pytest.mark.parametrize("checkpoint_s", [0, 0.1])
def test_a_shard_comes_back_with_its_last_checkpoint_and_the_other_one_loses_nothing(
    checkpoint_s: float, tmp_path: Path
) -> None:
    """Shard 1 fails at 0.163. Its parameters and its momentum are then those of 0.1, or still those of 0.163."""
    failures = (
        f"cluster.failures={{trace: {trace(tmp_path, (5, 0.163, 0.3))['trace']}, server_checkpoint_s: {checkpoint_s}}}"
    )
    words = ("algo=downpour", "algo.servers=2", "algo.server_optimizer=momentum", "eval.every_steps=null", failures)
    simulation = Simulation(prepared(*SETTING, *words))
    machine, seen = simulation.machine, dict[float, list[tuple[torch.Tensor, torch.Tensor, int]]]()

    def look() -> bool:
        states = [(s.server.x.clone(), s.server.state.clone(), s.version) for s in machine.shards]
        seen[machine.loop.now] = states
        return machine.loop.now >= 0.163

    for _ in simulation.run(interrupt=look):
        pass
    before = seen[max(now for now in seen if now < (checkpoint_s or 0.163))]
    after, latest = seen[machine.loop.now], seen[max(now for now in seen if now < 0.163)]
    assert machine.loop.now == 0.163
    assert torch.equal(after[1][0], before[1][0])
    assert torch.equal(after[1][1], before[1][1])
    assert torch.equal(after[0][0], latest[0][0])
    lost = latest[1][2] - before[1][2]
    assert simulation.summary()["lost_updates"] == lost
    assert (lost > 5) == bool(checkpoint_s)


def test_workers_and_servers_that_fail_often_make_all_steps() -> None:
    """A worker that is repaired while a server is down waits for its parameters."""
    failures = "cluster.failures={every_s: 0.3, repair_s: 0.1, server_checkpoint_s: 0.05}"
    for algo in ("downpour", "easgd"):
        words = (f"algo={algo}", "algo.servers=2", "eval.every_steps=null", "budget.steps=100", failures)
        simulation = simulated(*words, "cluster.jitter=0.3")
        summary: Any = simulation.summary()
        assert (simulation.status, simulation.machine.samples) == ("completed", simulation.experiment.total_samples)
        assert summary["lost_updates"] > 3
        assert 0.2 < summary["goodput"] < 0.9


def test_only_servers_that_fail_are_in_a_trace(tmp_path: Path) -> None:
    path = trace(tmp_path, (5, 1.0, 2.0))["trace"]
    words = [*SETTING, "algo=downpour"]
    rule = r"^cluster\.failures must name nodes in 0\.\.4 \(nodes=4 and 1 servers\), got 5 in its trace$"
    with pytest.raises(ValueError, match=rule):
        prepared(*words, f"cluster.failures={{trace: {path}, server_checkpoint_s: 0}}")
    with pytest.raises(ValueError, match=r"^cluster\.failures must name nodes in 0\.\.3 \(nodes=4\), got 5"):
        prepared(*words, f"cluster.failures.trace={path}")
