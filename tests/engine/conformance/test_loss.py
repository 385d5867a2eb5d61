"""Lost messages cost methods in lock-step time and nothing else; any run with them can be stopped and conserves."""

from __future__ import annotations

import pytest
import torch

from dsgd.streams import stream
from tests.engine.conformance.test_resume import QUADRATIC, assert_same, in_memory, in_pieces, uninterrupted
from tests.support.cases import CASES, described, prepared
from tests.support.long import long_but

LOSSY = ("cluster.loss=0.2", "cluster.retransmit_s=0.03", "cluster.collective=ring", "cluster.collective_messages=true")


@pytest.mark.parametrize("case", long_but(CASES[1::3], CASES), ids=described)
def test_after_any_event_it_goes_on_as_if_nothing_had_been(case: tuple[str, ...]) -> None:
    """What waits to be sent again is part of a checkpoint, and what has overtaken it."""
    experiment = prepared(*QUADRATIC, *LOSSY, f"algo={case[0]}", *case[1:])
    expected = uninterrupted(experiment)
    assert expected[1].summary()["messages_lost"] + expected[1].summary()["messages_resent"] > 0
    stop = int(stream("where to stop losses", CASES.index(case)).integers(0, expected[1].machine.loop.processed))
    assert_same(in_pieces(experiment, [stop], in_memory), expected, [stop])


@pytest.mark.parametrize("case", long_but(CASES[::2], CASES), ids=described)
def test_in_lock_step_it_costs_time_alone_and_nothing_conserved_is_lost(case: tuple[str, ...]) -> None:
    """However late a message comes, every worker in lock-step has the parameters of a run without loss, bit for bit."""
    options = (*QUADRATIC, "eval.conservation=true", f"algo={case[0]}", *case[1:])
    experiment = prepared(*options)
    marks, found = uninterrupted(prepared(*options, *LOSSY))
    drift = marks[-1]["mean_drift"]
    assert (drift is None) == (experiment.algo.conserves is None)
    assert drift is None or drift <= 1e-13
    if experiment.algo.lockstep and not experiment.algo.backups:  # elsewhere the network decides who comes first
        _, expected = uninterrupted(experiment)
        for one, other in zip(found.machine.nodes, expected.machine.nodes, strict=True):
            assert torch.equal(one.worker.x, other.worker.x)
        assert found.summary()["messages_resent"] > 0
        assert found.time_s >= expected.time_s  # some hide it behind their gradients


def test_the_same_command_loses_the_same_messages_and_another_seed_others() -> None:
    found = []
    for seed in (3, 3, 4):
        marks, simulation = uninterrupted(prepared(*QUADRATIC, *LOSSY, "algo=gossip", "algo.mode=push", f"seed={seed}"))
        found.append((marks, simulation.summary()))
    assert found[0] == found[1] != found[2]


def test_what_is_lost_reaches_no_uplink() -> None:
    """Islands pass what arrives, once; the nodes send what is lost, too."""
    islands = ("cluster=islands", "cluster.gradient_s=0.01", *QUADRATIC, *LOSSY, "algo=sync", "algo.overlap=false")
    found, expected = (uninterrupted(prepared(*islands, f"cluster.loss={q}"))[1].summary() for q in (0.2, 0))
    assert found["bytes_between_islands"] == expected["bytes_between_islands"] > 0
    assert found["bytes_received_total"] == expected["bytes_received_total"] == expected["bytes_sent_total"]
    assert found["bytes_sent_total"] == expected["bytes_sent_total"] + found["messages_resent"] * 1e6 / 4
