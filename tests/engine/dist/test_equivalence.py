"""Both engines run the same algorithms: the same numbers come out, to the last few bits of float64.

In lock-step nothing depends on who is faster. A free-running algorithm is made to take the turns that its simulation
took. Then the laws that hold however the workers race. One case for each way of waiting, of keeping vectors, and of
having something under way: `tests/system/dist/test_equivalence.py` has the other options of the algorithms.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsgd.data import Quadratic
from dsgd.engines.dist.pairwise.wire import LEAST_BYTES
from dsgd.engines.sim.simulation import Simulation
from tests.support.prefork import Prefork, Run
from tests.support.reference import Direction, Setting
from tests.support.simulate import Outcome, simulate
from tests.support.watched_algorithms import observed, seen

RELATIVE = 1e-10
MEASURED = ("samples", "epoch", "lr", "train_loss", "test_loss", "test_accuracy", "consensus_distance", "discrepancy")
MEASURED += ("pairwise_distance_median",)
STALENESS = ("staleness_mean", "staleness_max")
QUADRATIC = ("experiment=quadratic", "optimizer.lr=0.05")
PATIENT = ("engine=dist", "engine.patience_s=60")  # nobody is left out, however busy the machine is
DIGITS = (
    "precision=fp64", "model=resnet8", "model.width=4", "data=digits", "batch_size=4", "nodes=2", "budget.steps=5",
    "eval.every_epochs=null", "eval.train_samples=32", "optimizer.momentum=0.9", "optimizer.nesterov=true",
    "optimizer.weight_decay=0.01",
)  # fmt: skip
LOCKSTEP: dict[str, tuple[str, ...]] = {
    "dpsgd": ("dpsgd",),
    "delayfree": ("delayfree", "algo.tau=4"),
    "diloco, eager": ("diloco", "algo.tau=3", "algo.overlap=eager"),
    "streaming": ("streaming", "algo.tau=4", "algo.fragments=2", "algo.delay=1"),
    "relay": ("relay",),
    "sgp, overlapped": ("sgp", "algo.overlap=2", "topology=star"),
    "easgd, all at once": ("easgd", "algo.variant=sync", "algo.tau=2"),
}
IN_A_NETWORK: dict[str, tuple[str, ...]] = {
    "sync, overlapping": ("sync",),
    "localsgd": ("localsgd", "algo.tau=3"),
    "compressed, powersgd": ("compressed",),
}


def run_both(prefork: Prefork, folder: Path, algo: str, *overrides: str) -> tuple[Outcome, Run]:
    """The same command line in the simulator, here, and in real processes. Files of observation in folder/files."""
    run = prefork.run(folder / "run", *observed(algo, folder / "files"), *overrides, *PATIENT)
    assert run.summary["status"] == "completed", run.err
    return simulate(f"algo={algo}", *overrides), run


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    assert np.abs(expected).max() > 0
    assert np.abs(found - expected).max() <= RELATIVE * np.abs(expected).max()


def assert_same_marks(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [mark["samples"] for mark in found] == [mark["samples"] for mark in expected]
    for mine, theirs in zip(found, expected, strict=True):
        for field in MEASURED:
            expected_value = theirs[field] if theirs[field] is None else pytest.approx(theirs[field], RELATIVE, 1e-14)
            assert mine[field] == expected_value, field


def assert_same(prefork: Prefork, folder: Path, algo: str, *overrides: str) -> Outcome:
    simulated, run = run_both(prefork, folder, algo, *overrides)
    assert_close(seen(folder / "files", "worker", len(simulated.x))[:, 0], simulated.x.numpy())
    marks = simulated.marks
    if marks[-1]["samples"] == marks[-2]["samples"]:  # the simulator measures what the last exchange changes, too
        del marks[-2]
    assert_same_marks(run.marks, marks)
    for mine, theirs in zip(run.marks, marks, strict=True):  # of vectors in lock-step
        if (
            algo == "compressed" or "algo.code=sparse" in overrides
        ):  # whose simulated workers have their neighbours' codes one after the other
            break
        assert [mine[field] for field in STALENESS] == [theirs[field] for field in STALENESS]
    assert run.summary["worker_steps"] == simulated.summary["worker_steps"]
    received = ("bytes_received_total", "bytes_received_max_node", "bytes_received_max_server")
    d = simulated.x.shape[1]
    beside = (d + 1) / d if algo in ("sgp", "relay") else 1  # a weight, or a count, goes with every vector
    assert [run.summary[field] for field in received] == [
        # real processes round a collective's bytes to whole ones
        simulated.summary[field] and pytest.approx(simulated.summary[field] * beside, abs=len(simulated.x))
        for field in received
    ]
    return simulated


@pytest.mark.parametrize("name", LOCKSTEP)
def test_lock_step_ends_with_the_same_parameters_on_quadratics(prefork: Prefork, tmp_path: Path, name: str) -> None:
    assert_same_on_quadratics(prefork, tmp_path, *LOCKSTEP[name])


def assert_same_on_quadratics(prefork: Prefork, folder: Path, algo: str, *options: str) -> None:
    """Three workers with momentum and weight decay, a mark at every step."""
    setting = ("nodes=3", "budget.steps=21", "optimizer.momentum=0.8", "optimizer.weight_decay=0.03")
    spread = "data.curvature_spread=0.3"
    simulated = assert_same(prefork, folder, algo, *options, *QUADRATIC, *setting, spread)
    assert len({mark["samples"] for mark in simulated.marks}) == 22


def test_vectors_that_are_read_in_place_end_with_the_same_parameters(prefork: Prefork, tmp_path: Path) -> None:
    """Large ones, of which two processes of one machine read each other's: here a worker and a server."""
    large = ("data.dim=150000", "nodes=2", "budget.steps=5", "eval.every_steps=null")
    assert LEAST_BYTES < 8 * 150000
    assert_same(prefork, tmp_path, "easgd", *QUADRATIC, *large, "algo.variant=sync", "algo.tau=2")


def test_workers_that_go_apart_end_with_the_same_parameters(prefork: Prefork, tmp_path: Path) -> None:
    assert_same_at_the_end(prefork, tmp_path, "easgd", "algo.variant=round_robin")


def assert_same_at_the_end(prefork: Prefork, folder: Path, algo: str, *options: str) -> None:
    """Marks between are of moments in the simulator and of steps in real processes, which differ where workers are
    never at the same step at the same moment; so does who has made how many steps when the centre is taken."""
    turns = ("algo.tau=2", "budget.steps=21", "nodes=3", "eval.every_steps=null")
    simulated, run = run_both(prefork, folder, algo, *QUADRATIC, *turns, *options)
    assert_close(seen(folder / "files", "worker", 3)[:, 0], simulated.x.numpy())
    assert_same_marks(run.marks, simulated.marks)


@pytest.mark.parametrize("name", IN_A_NETWORK)
def test_lock_step_ends_with_the_same_parameters_in_a_network(prefork: Prefork, tmp_path: Path, name: str) -> None:
    """A ResNet with batch norm on images; the averaged model's statistics are part of the losses at the marks."""
    split = "label" if name == "localsgd" else "iid"
    simulated = assert_same(prefork, tmp_path, *IN_A_NETWORK[name], *DIGITS, f"data.split={split}")
    assert simulated.x.shape[1] > 1_000
    assert simulated.marks[0]["train_loss"] != simulated.marks[-1]["train_loss"]


@pytest.mark.parametrize("algo", ["sync", "easgd"])
def test_one_worker_ends_with_the_same_parameters(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    """Who has nobody to average with, or nobody to share a server with."""
    options = ("nodes=1", "budget.steps=9", "optimizer.momentum=0.5", "eval.every_steps=null")
    assert_same(prefork, tmp_path, algo, *QUADRATIC, *options)


def test_a_network_with_dropout_ends_with_the_same_parameters(prefork: Prefork, tmp_path: Path) -> None:
    model = ("model=import", "model.target=tests.support.networks.dropping")
    line = [text for text in DIGITS if not text.startswith("model")]
    assert_same(prefork, tmp_path, "localsgd", "algo.tau=2", *line, *model)


def test_a_directed_graph_that_varies_mixes_the_same_vectors(prefork: Prefork, tmp_path: Path) -> None:
    options = ("topology=one_peer_exponential", "nodes=3", "budget.steps=8", "algo.gradient=after")
    simulated = assert_same(prefork, tmp_path, "dpsgd", *QUADRATIC, *options)
    assert simulated.marks[-1]["consensus_distance"] > 0


def test_late_gradients_are_dropped_and_their_worker_takes_part_again(prefork: Prefork, tmp_path: Path) -> None:
    """Of three workers with one backup, first the third is late for ten steps, then the second for ever."""
    s = Setting(nodes=3, steps=25, lr=0.05, momentum=0.8, seed=0, data=Quadratic(dim=20))
    options = (*QUADRATIC, "nodes=3", "budget.steps=25", "optimizer.momentum=0.8")
    data = ("data._target_=tests.support.slow_gradients.Handover", f"+data.skip_file='{tmp_path / 'turn'}'")
    backups = ("algo.overlap=false", "algo.backups=1", "eval.every_steps=null")
    run = prefork.run(tmp_path / "run", *observed("sync", tmp_path / "files"), *options, *data, *backups, *PATIENT)
    assert run.summary["status"] == "completed", run.err
    assert run.summary["samples"] == 50
    assert run.summary["worker_steps"] == [25] * 3
    x, direction = np.zeros(20), Direction(s)
    for k in range(25):
        other = s.gradient(1, k, x) if k < 10 else s.gradient(2, k - 9, x)
        x = x - s.lr * direction((s.gradient(0, k, x) + other) / 2)
    found = seen(tmp_path / "files", "worker", 3)[:, 0]
    assert (found == found[0]).all()
    assert_close(found[0], x)


# Free-running, made to take turns

FACTORS = "cluster.slow_nodes={0: 1.0, 1: 1.3717, 2: 2.2361}"
UNTIED = ("nodes=3", "cluster=ideal", FACTORS, "budget.steps=12", "eval.every_steps=null")
FREE: dict[str, tuple[str, ...]] = {
    "gossip, pull": ("gossip",),
    "gossip, push every second step": ("gossip", "algo.mode=push", "algo.tau=2"),
    "adpsgd": ("adpsgd",),
    "easgd, a centre in two": ("easgd", "algo.tau=3", "algo.servers=2"),
    "downpour": ("downpour", "algo.n_push=3", "algo.servers=3", "algo.server_optimizer=momentum"),
}


def turns_of(*overrides: str) -> tuple[list[int], Outcome]:
    """Which worker's step came when in the simulation, whose gradients all end at different moments."""
    turns: list[int] = []
    moments: list[float] = []
    made: list[int] = []

    def look(simulation: Simulation) -> bool:
        nonlocal made
        now = [node.worker.steps for node in simulation.machine.nodes]
        for rank, (before, after) in enumerate(zip(made or [0] * len(now), now, strict=True)):
            turns.extend([rank] * (after - before))
            moments.extend([simulation.machine.loop.now] * (after - before))
        made = now
        return False

    outcome = simulate(*overrides, interrupt=look)
    look(outcome.simulation)
    assert len(turns) == outcome.simulation.machine.samples
    assert all(before < after for before, after in pairwise(moments))
    return turns, outcome


@pytest.mark.parametrize("name", FREE)
def test_free_workers_that_take_the_simulation_s_turns_end_where_it_ends(
    prefork: Prefork, tmp_path: Path, name: str
) -> None:
    turns = assert_same_in_turns(prefork, tmp_path, *FREE[name])
    assert sum(a != b for a, b in pairwise(turns)) > len(turns) // 2  # they interleave


def assert_same_in_turns(prefork: Prefork, folder: Path, algo: str, *options: str) -> list[int]:
    """Compare vectors, the centre and the losses at the last mark. Returns the turns."""
    overrides = (*QUADRATIC, *UNTIED, *options)
    turns, simulated = turns_of(f"algo={algo}", *overrides)
    assert sorted(set(turns)) == [0, 1, 2]
    order = f"+algo.turns='{turns}'"
    run = prefork.run(folder / "run", *observed(algo, folder / "files"), *overrides, order, *PATIENT)
    assert run.summary["status"] == "completed", run.err
    assert_close(seen(folder / "files", "worker", 3)[:, 0], simulated.x.numpy())
    shards = [shard.server.x.numpy() for shard in simulated.simulation.machine.shards]
    if shards:
        assert_close(seen(folder / "files", "server", len(shards)), np.concatenate(shards))
    assert_same_marks(run.marks, simulated.marks)
    assert len(run.marks) == 2
    return turns


# However they race

RACING = (*QUADRATIC, *PATIENT, "nodes=4", "data.dim=6", "budget.steps=25", "eval.every_steps=null")


def race(prefork: Prefork, folder: Path, algo: str, *overrides: str) -> np.ndarray:
    """[4, 3, d]: every worker's x, what its steps have added, what it handed to servers; each after 25 steps."""
    run = prefork.run(folder / "run", *observed(algo, folder), *RACING, "+algo.own=25", *overrides)
    assert run.summary["status"] == "completed", run.err
    assert run.summary["samples"] == 100
    assert run.summary["worker_steps"] == [25] * 4
    return seen(folder, "worker", 4)


def test_easgd_keeps_the_sum_of_workers_and_centre(prefork: Prefork, tmp_path: Path) -> None:
    """What an exchange takes from a worker it gives to the centre: without steps, c + sum x_i stays what it was."""
    options = ("optimizer.lr=0", "algo.tau=2", "algo.alpha=0.3", "+algo.apart=true", "algo.servers=2")
    x = race(prefork, tmp_path, "easgd", *options)[:, 0]
    centre = seen(tmp_path, "server", 2)
    np.testing.assert_allclose(centre + x.sum(axis=0), [1, 1, 1, 1, 0, 0], rtol=0, atol=1e-13)
    assert (centre[:4] > 0.1).all()


def test_adpsgd_keeps_the_sum_of_the_workers(prefork: Prefork, tmp_path: Path) -> None:
    """Whoever has ended still answers, and who has asked waits for its answer before it ends."""
    x = race(prefork, tmp_path, "adpsgd", "optimizer.lr=0", "+algo.apart=true")[:, 0]
    np.testing.assert_allclose(x.sum(axis=0), [1, 1, 1, 1, 0, 0], rtol=0, atol=1e-13)
    assert (x[:, :4].max(axis=0) < 1).any()


def test_downpour_s_server_applies_every_push_once(prefork: Prefork, tmp_path: Path) -> None:
    """c = c_0 - lr times the sum of all that was pushed, in whatever order."""
    files = race(prefork, tmp_path, "downpour", "algo.servers=2", "algo.n_push=5", "algo.n_fetch=3")
    centre = seen(tmp_path, "server", 2)
    assert np.abs(centre).max() > 0.1
    np.testing.assert_allclose(centre, -0.05 * files[:, 2].sum(axis=0), rtol=1e-12)
