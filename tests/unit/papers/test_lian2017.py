"""Verdicts on Lian et al. 2017, on runs that never ran."""

from __future__ import annotations

import numpy as np
import pytest

from dsgd.topology import Complete, Hypercube, Ring, Torus
from studies.papers.lian2017 import claims
from studies.reproduction.logged import Logged
from studies.reproduction.verdict import Verdict
from tests.support import logged
from tests.support.each_row import each_row

PASS, FAIL = Verdict.PASS, Verdict.FAIL


@each_row("graph", [Ring(), Torus(), Hypercube(), Complete()])
def test_eigenvalues_written_by_hand_are_those_of_the_graphs(graph: Ring | Torus | Hypercube | Complete) -> None:
    topology = graph.build(16, 0)
    by_hand = claims.EIGENVALUES[topology.name]
    assert np.sort(by_hand) == pytest.approx(np.linalg.eigvalsh(topology.matrix()), abs=1e-12)


def networks(power: float, worse: str = "") -> dict[str, Logged]:
    """On a network that is slower by a factor, all-reduce takes so much longer by this power of it; against one
    collective and in one respect there is no difference."""
    evidence = {}
    for study, (key, values) in claims.AXES.items():
        runs = []
        for collective in claims.COLLECTIVES:
            for value in values:
                settings = {key: value, "cluster.collective": collective}
                slower = max(value / values[0], values[0] / value)
                ratio = 1.0 if worse == f"{study} {collective}" else slower**power
                runs.append(logged.run("dpsgd", settings, time_s=1.0))
                runs.append(logged.run("sync", settings, time_s=ratio))
        evidence[study] = logged.study(*runs)
    return evidence


@each_row(
    ("power", "worse", "verdict"),
    [(0.1, "", PASS), (0.1, "latency star", Verdict.REGION), (0.01, "", FAIL), (-0.1, "", FAIL)],
)
def test_l8_compares_the_slowest_network_with_the_fastest(power: float, worse: str, verdict: Verdict) -> None:
    assert claims.l8(networks(power, worse)).verdict is verdict
