"""Methods in lock-step that go on without the workers that are down, and take them in again: `algo.elastic`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dsgd.algorithms.diloco import DiLoCo
from dsgd.algorithms.localsgd import LocalSGD
from dsgd.algorithms.sync import Sync
from dsgd.engines.sim.simulation import Simulation
from dsgd.worker import Algorithm
from tests.engine.sim.test_failures import SETTING, cluster, simulated, trace, vectors
from tests.support.cases import prepared
from tests.support.timing import timed

N_BYTES = 1e6
SYNC = Sync(overlap=False, elastic=True)
ELASTIC = (
    "sync algo.overlap=false algo.elastic=true",
    "localsgd algo.tau=3 algo.momentum=average algo.elastic=true",
    "diloco algo.tau=3 algo.elastic=true",
)


def run(algo: str, *words: str) -> Simulation:
    return simulated(f"algo={algo.split()[0]}", *algo.split()[1:], "eval.every_steps=null", *words)


def test_steps_go_on_with_two_of_three_and_wait_for_the_third_to_have_its_parameters(tmp_path: Path) -> None:
    """A gradient takes 1 s, an all-reduce 2 (p - 1) / p s. Node 2 fails in its second gradient, at 2.83: step 2 ends
    2 s after the first one, and step 3 at 6.33. Up at 5, it is answered when a peer begins step 4, has its parameters a
    second later, and computes until 8.33, when an all-reduce of three begins."""
    failing = cluster(collective="ring", failures=trace(tmp_path, (2, 7 / 3 + 0.5, 5.0)))
    for steps, end_s in ((1, 7 / 3), (2, 13 / 3), (3, 19 / 3), (4, 29 / 3), (5, 12.0)):
        simulation = timed(SYNC, failing, nodes=3, steps=steps)
        assert simulation.time_s == pytest.approx(end_s, rel=1e-12)
    summary = simulation.summary()
    assert (summary["failures"], summary["lost_work_s"]) == (1, pytest.approx(0.5))
    down_s = 19 / 3 + 1 - (7 / 3 + 0.5)
    assert summary["goodput"] == pytest.approx(1 - (down_s + 0.5) / 3 / 12)
    assert summary["worker_steps"] == [5, 5, 5]
    assert simulation.machine.steps == 3 * 5 - 2  # node 2 has no part in steps 2 and 3
    sent = (3 * 3 * 4 / 3 + 2 * 2 * 1 + 1) * N_BYTES  # three all-reduces of three, two of two, and the parameters
    assert sum(simulation.machine.network.bytes_sent(12.0)) == pytest.approx(sent)


def test_a_ring_over_links_passes_the_regions_of_those_that_are_up(tmp_path: Path) -> None:
    """Regions a, b, b. A gradient takes 1 s, a hop between a and b 0.1 s and N / p over 4 Mbit/s. With all, a
    part waits for its link in all of 4 rounds, and passes both; with one node of each region there are 2 rounds, and
    within b alone, at 8 Mbit/s and without latency, 2."""
    far = {"latency_s": [[None, 0.1], [None, None]], "bandwidth": [[None, 4e6], [None, None]]}
    links = {"regions": ["a", "b"], "nodes": [1, 2], **far}
    all_s, two_s, within_s = 4 * 2 / 3 + 2 * 0.1, 2 * (0.1 + 1.0), 2 * 0.5
    for down, second_s, left in ((2, two_s, 4 / 3 + 1.0), (0, within_s, 4 / 3)):
        failing = cluster(links=links, failures=trace(tmp_path, (down, 1 + all_s + 0.5, 99.0)))
        simulation = timed(SYNC, failing, nodes=3, steps=2)
        assert simulation.time_s == pytest.approx(2 + all_s + second_s, rel=1e-9)
        routes = simulation.machine.network.routes
        assert routes is not None
        assert routes.bytes_out(99.0) == pytest.approx([left * N_BYTES] * 2)


def test_a_worker_that_others_wait_for_frees_them_when_it_fails(tmp_path: Path) -> None:
    """Node 2 takes 9 s for a gradient and fails after 4: then the others, who are done after 1, average in 1 s."""
    failing = cluster(collective="ring", slow_nodes={2: 9.0}, failures=trace(tmp_path, (2, 4.0, 100.0)))
    assert timed(SYNC, failing, nodes=3, steps=2).time_s == pytest.approx(4 + 1 + 2, rel=1e-12)


@pytest.mark.parametrize(
    ("algo", "end_s"),
    [(LocalSGD(tau=3, elastic=True), 3 + 1 + 3), (DiLoCo(tau=3, elastic=True), 3 + 1 + 3 + 4 / 3)],
    ids=["localsgd", "diloco"],
)
def test_a_worker_goes_on_in_the_midst_of_a_round(algo: Algorithm, end_s: float, tmp_path: Path) -> None:
    """Six steps in two rounds. Node 2 is down in the first one, whose average two nodes make. Up at 4.5 it is answered
    at 5, when a peer has made step 4, and begins step 5 a second later than the others: it is done at 8."""
    failing = cluster(collective="ring", failures=trace(tmp_path, (2, 0.5, 4.5)))
    assert timed(algo, failing, nodes=3, steps=6).time_s == pytest.approx(end_s + 1, rel=1e-12)


@pytest.mark.parametrize("algo", ["sync algo.overlap=false", "diloco algo.tau=3 algo.beta=0 algo.olr=1"])
def test_the_mean_is_over_those_that_are_up(algo: str, tmp_path: Path) -> None:
    """Node 1 is down from the beginning: a step of `sync`, and a round of three steps of `diloco` that moves theta all
    the way, end at the mean of what the other three make by themselves."""
    steps = f"budget.steps={1 if algo.startswith('sync') else 3}"
    down = f"cluster.failures.trace={trace(tmp_path, (1, 1e-6, 9.0))['trace']}"
    machine = run(f"{algo} algo.elastic=true", steps, down).machine
    apart = vectors(run("localsgd algo.tau=99", steps))
    centre = machine.centre()
    x = machine.nodes[0].worker.x if centre is None else centre
    assert torch.allclose(x, apart[[0, 2, 3]].mean(0), rtol=1e-12)
    assert not torch.allclose(x, apart.mean(0), rtol=1e-3)


@pytest.mark.parametrize("algo", ELASTIC)
def test_with_many_failures_all_steps_are_made_and_all_workers_agree(algo: str) -> None:
    """Every node fails about every ten gradients. Those that are up have the same parameters after an average."""
    words = ("cluster.failures={every_s: 0.1, repair_s: 0.05}", "cluster.jitter=0.3", "budget.steps=80", "seed=1")
    simulation = run(algo, *words, "cluster.message_bytes=1e6", "optimizer.momentum=0.9")
    summary, nodes = simulation.summary(), simulation.machine.present
    assert (simulation.status, {node.worker.steps for node in nodes}) == ("completed", {80})
    assert summary["failures"] > 20
    assert 0.2 < summary["goodput"] < 0.9
    if not algo.startswith("localsgd"):
        centres = [node.worker.kept.get("theta", node.worker.x) for node in nodes]
        assert all(torch.equal(centres[0], centre) for centre in centres)
    assert simulation.machine.samples < 80 * simulation.experiment.unit


def test_a_worker_that_is_back_shares_no_memory_with_the_peer_that_helped_it(tmp_path: Path) -> None:
    """Its vectors would change with the peer's, until the algorithm replaces them."""
    network = ("data=digits", "model=resnet8", "model.width=2", "batch_size=2", "budget.epochs=null", "budget.steps=4")
    down = f"cluster.failures.trace={trace(tmp_path, (2, 0.015, 0.02))['trace']}"
    diloco = ("algo=diloco", "algo.tau=8", "algo.elastic=true", "cluster.gradient_s=0.01", "nodes=3", down)
    simulation = Simulation(prepared(*network, *diloco, "eval.every_epochs=null"))

    def look() -> bool:
        workers = [node.worker for node in simulation.machine.present]
        owned = [v.data_ptr() for worker in workers for v in (worker.x, *worker.kept.values())]
        owned += [node.buffers.data_ptr() for node in simulation.machine.present]
        assert len({*owned}) == len(owned)
        return False

    list(simulation.run(look))
    assert simulation.summary()["failures"] == 1
    assert simulation.machine.nodes[2].worker.kept


@pytest.mark.parametrize("algo", ELASTIC[:2])
def test_without_failures_nothing_changes(algo: str) -> None:
    waiting = run(algo.replace("elastic=true", "elastic=false"), "budget.steps=9")
    going_on = run(algo, "budget.steps=9", "cluster.failures={every_s: 1e8, repair_s: 1}")
    assert going_on.time_s == waiting.time_s
    assert torch.equal(vectors(going_on), vectors(waiting))


def test_runs_that_it_does_not_go_with_are_one_line() -> None:
    words = [*SETTING, "algo=diloco", "algo.elastic=true"]
    failing = "cluster.failures={every_s: 5, repair_s: 1}"
    with pytest.raises(ValueError, match=r"^algo\.elastic must be false with cluster\.collective_messages, which"):
        prepared(*words, failing, "cluster.collective_messages=true", "cluster.collective=ring")
    with pytest.raises(ValueError, match=r"^algo\.elastic must be false with cluster\.islands.*; cluster\.links can"):
        prepared(*words, failing, "cluster.islands=2")
    with pytest.raises(ValueError, match=r"^eval\.conservation must be false with cluster\.failures and algo\.elastic"):
        prepared(*words, failing, "eval.conservation=true")
