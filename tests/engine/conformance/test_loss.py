"""Which messages are lost, and what is counted of them. What they cost a method is among the rules for all."""

from __future__ import annotations

from tests.engine.conformance.test_resume import LOSSY, QUADRATIC, uninterrupted
from tests.support.cases import prepared


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
