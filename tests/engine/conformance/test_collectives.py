"""Every collective, by its formula and as messages, changes times and bytes and nothing else."""

from __future__ import annotations

from functools import cache
from itertools import cycle

import pytest
import torch

from dsgd.cluster import COLLECTIVES
from dsgd.engines.sim.simulation import Simulation
from dsgd.streams import stream
from tests.engine.conformance.test_resume import LOSSY, QUADRATIC, assert_same, in_memory, in_pieces, uninterrupted
from tests.support.cases import ALGORITHMS, prepared

WAYS = [(name, messages) for name in COLLECTIVES for messages in (False, True) if not (name == "best" and messages)]
CASES = [("sync",), ("sync", "algo.overlap=false"), ("delayfree", "algo.tau=4"), ("diloco", "algo.tau=3")]

each_way = pytest.mark.parametrize(("collective", "messages"), WAYS)


def way_of(collective: str, messages: bool) -> tuple[str, str]:
    return f"cluster.collective={collective}", f"cluster.collective_messages={str(messages).lower()}"


def options(collective: str, messages: bool, *case: str) -> tuple[str, ...]:
    return (*QUADRATIC, f"algo={case[0]}", *case[1:], *way_of(collective, messages))


@cache
def with_trouble(collective: str, messages: bool, *case: str) -> Simulation:
    trouble = ("nodes=5", "cluster.node_bandwidth={2: 1e8}", "cluster.chunks_per_message=2")
    return uninterrupted(prepared(*options(collective, messages, *case), *trouble))[1]


def case_of(collective: str, messages: bool) -> tuple[str, ...]:
    """Return what goes this way: all cases in turn, each by formulas and by messages."""
    return CASES[(COLLECTIVES.index(collective) + 2 * messages) % len(CASES)]


@each_way
def test_it_computes_what_all_others_do_and_goes_on_after_any_event(collective: str, messages: bool) -> None:
    """With jitter, pauses, a slow node and ports of different speed, on a number of nodes that is no power of two."""
    case = case_of(collective, messages)
    expected = with_trouble("best", False, *case)
    found = with_trouble(collective, messages, *case)
    for one, other in zip(found.machine.nodes, expected.machine.nodes, strict=True):
        assert torch.equal(one.worker.x, other.worker.x)
        assert one.worker.steps == other.worker.steps
    assert found.status == "completed"
    assert found.summary()["collective"] == (collective if collective != "best" else expected.summary()["collective"])
    assert found.machine.staleness_max == expected.machine.staleness_max
    assert (found.machine.network.messages > 0) == messages
    experiment = prepared(*options(collective, messages, *case_of(collective, not messages)))
    expected = uninterrupted(experiment)
    stop = int(
        stream("where to stop a collective", WAYS.index((collective, messages))).integers(
            0, expected[1].machine.loop.processed
        )
    )
    assert_same(in_pieces(experiment, [stop], in_memory), expected, [stop])


@pytest.mark.parametrize(("algo", "way"), [*zip(ALGORITHMS, cycle(WAYS))])
def test_alone_or_with_an_algorithm_that_needs_none(algo: str, way: tuple[str, bool]) -> None:
    """One node has nobody to reduce with; what needs no collective takes no notice of it, and its summary has none."""
    for nodes in (1, 4):
        short = ("experiment=quadratic", f"nodes={nodes}", "budget.steps=5", "engine.gradients=none")
        simulation = Simulation(prepared(*short, f"algo={algo}", *way_of(*way)))
        assert list(simulation.run())
        summary = simulation.summary()
        assert summary["status"] == "completed"
        assert (summary["collective"] != "none") == (nodes > 1 and simulation.machine.nodes[0].collectives > 0)


@pytest.mark.parametrize(
    ("case", "messages"),
    [
        (("sync",), True),
        (("sync", "algo.overlap=false"), False),
        (("delayfree", "algo.tau=4"), True),
        (("gossip",), True),
        (("easgd", "algo.servers=2"), False),
        (("localsgd", "algo.group=2"), True),
    ],
)
def test_islands_change_no_value_and_can_be_stopped_at_any_event(case: tuple[str, ...], messages: bool) -> None:
    """Where workers race, what they compute depends on the network."""
    congestion = "cluster.congestion=[{every_s: 0.2, duration_s: 0.1, factor: 0.3}]"
    way = (*way_of("hierarchical", messages), *([congestion] if messages else []))
    experiment = prepared("cluster=islands", "cluster.gradient_s=0.01", *QUADRATIC, f"algo={case[0]}", *case[1:], *way)
    expected = uninterrupted(experiment)
    stop = int(stream("where to stop islands", messages).integers(0, expected[1].machine.loop.processed))
    assert_same(in_pieces(experiment, [stop], in_memory), expected, [stop])
    if experiment.algo.lockstep:
        _, without = uninterrupted(prepared(*QUADRATIC, f"algo={case[0]}", *case[1:]))
        for one, other in zip(expected[1].machine.nodes, without.machine.nodes, strict=True):
            assert torch.equal(one.worker.x, other.worker.x)


def test_what_is_lost_reaches_no_uplink() -> None:
    """Islands pass what arrives, once; the nodes send what is lost, too."""
    islands = ("cluster=islands", "cluster.gradient_s=0.01", *QUADRATIC, *LOSSY, "algo=sync", "algo.overlap=false")
    found, expected = (uninterrupted(prepared(*islands, f"cluster.loss={q}"))[1].summary() for q in (0.2, 0))
    assert found["bytes_between_islands"] == expected["bytes_between_islands"] > 0
    assert found["bytes_received_total"] == expected["bytes_received_total"] == expected["bytes_sent_total"]
    assert found["bytes_sent_total"] == expected["bytes_sent_total"] + found["messages_resent"] * 1e6 / 4
