"""Verdicts on Lian et al. 2017, on runs that never ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dsgd.report.contest import Contender
from dsgd.topology import Complete, Hypercube, Ring, Torus
from studies.papers.lian2017 import claims, studies
from studies.reproduction.logged import Logged
from studies.reproduction.verdict import Verdict
from tests.support import logged
from tests.support.contenders import contender
from tests.support.each_row import each_row

PASS, FAIL, EXPLAINED, OPEN = Verdict.PASS, Verdict.FAIL, Verdict.EXPLAINED, Verdict.INCONCLUSIVE


def ending(algo: str, losses: Sequence[float], gradient: str | None = None) -> Contender:
    """A contender that ends with these losses, without a target."""
    found = contender(f"{algo}, {gradient}", losses, target=None)
    runs = [replace(run, config=run.config | {"algo": {"name": algo, "gradient": gradient}}) for run in found.runs]
    return replace(found, runs=runs)


def orders(before: float) -> Logged:
    """The published order ends with so many times the loss of all-reduce, on every seed."""
    losses = [0.30, 0.31, 0.32, 0.33, 0.34]
    dpsgd = [ending("dpsgd", [before * loss for loss in losses], order) for order in ("before", "after")]
    return logged.contest(ending("sync", losses), *dpsgd)


@each_row(("short", "long", "verdict"), [(1.02, 2.0, PASS), (1.021, 1.02, EXPLAINED), (1.021, 1.021, FAIL)])
def test_l1_is_explained_where_longer_runs_close_the_gap(short: float, long: float, verdict: Verdict) -> None:
    assert claims.l1({"per_sample": orders(short - 1e-9), "longer": orders(long - 1e-9)}).verdict is verdict


def noisy(factor: float) -> Logged:
    """Losses of the mean model that stay at so many times the noise floor, once they are there."""
    runs = []
    for nodes in (2, 4):
        floor = factor * studies.LR / (nodes * (2 - studies.LR))
        marks = [{"samples": nodes * step, "train_loss": 9.0 if step <= 400 else studies.DIM * floor / 2}
                 for step in range(0, 2001, 40)]  # fmt: skip
        runs.append(logged.run("dpsgd", {"nodes": nodes, "batch_size": 1}, marks))
    return logged.study(*runs)


@each_row(("factor", "verdict"), [(1.0, PASS), (1.09, PASS), (1.11, FAIL), (0.89, FAIL)])
def test_l2_measures_after_the_burn_in(factor: float, verdict: Verdict) -> None:
    assert claims.l2({"noise_floor": noisy(factor)}).verdict is verdict


@each_row("graph", [Ring(), Torus(), Hypercube(), Complete()])
def test_eigenvalues_written_by_hand_are_those_of_the_graphs(graph: Ring | Torus | Hypercube | Complete) -> None:
    topology = graph.build(16, 0)
    by_hand = studies.EIGENVALUES[topology.name]
    assert np.sort(by_hand) == pytest.approx(np.linalg.eigvalsh(topology.matrix()), abs=1e-12)


def graphs(**factors: float) -> Logged:
    runs = []
    for name, eigenvalues in studies.EIGENVALUES.items():
        distance = np.sqrt(factors.get(name, 1.0) * studies.consensus_distance(eigenvalues) * studies.DIM)
        marks = [{"samples": 16 * step, "consensus_distance": float(distance)} for step in range(0, 2001, 40)]
        run = logged.run("dpsgd", {"nodes": 16, "batch_size": 1, "topology": {"name": name}}, marks)
        runs.append(run)
    return logged.study(*runs)


@each_row(
    ("factors", "verdict"), [({}, PASS), ({"ring": 1.049}, PASS), ({"ring": 1.06}, FAIL), ({"complete": 1.3}, FAIL)]
)
def test_l5_compares_every_graph_with_its_closed_form(factors: dict[str, float], verdict: Verdict) -> None:
    assert claims.l5({"graphs": graphs(**factors)}).verdict is verdict


def rivals(seldom: float) -> Logged:
    """EAMSGD takes twice as long as D-PSGD with tau = 1, and so many times with tau = 10."""
    times = [1.0, 1.1, 1.2, 1.3, 1.4]
    dpsgd = contender("dpsgd", times)
    elastic = []
    for tau, factor in ((1, 2.0), (10, seldom)):
        rival = contender(f"easgd, tau = {tau}", [factor * time for time in times])
        runs = [replace(run, config=run.config | {"algo": {"name": "easgd", "tau": tau}}) for run in rival.runs]
        elastic.append(replace(rival, runs=runs))
    return logged.contest(dpsgd, *elastic)


@each_row(("share", "verdict"), [(0.81, PASS), (0.79, FAIL)])
def test_l7_asks_for_most_of_a_linear_speed_up(share: float, verdict: Verdict) -> None:
    times = [1.0, 1.1, 1.2, 1.3, 1.4]
    several = [contender("dpsgd", [time / p / share for time in times], nodes=p) for p in studies.WORKERS]
    assert claims.l7({"speed_up": logged.contest(contender("dpsgd", times, nodes=1), *several)}).verdict is verdict


def networks(power: float, worse: str = "") -> dict[str, Logged]:
    """On a network that is slower by a factor, all-reduce takes so much longer by this power of it; against one
    collective and in one respect there is no difference."""
    evidence = {}
    for study, (key, values) in studies.AXES.items():
        runs = []
        for collective in studies.COLLECTIVES:
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


@each_row(("seldom", "verdict"), [(1.11, PASS), (1.09, FAIL)])
def test_l6_asks_it_of_both_periods(seldom: float, verdict: Verdict) -> None:
    assert claims.l6({"elastic": rivals(seldom)}).verdict is verdict
