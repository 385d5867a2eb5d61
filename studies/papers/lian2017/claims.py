"""Judge the claims of Lian et al. about times, and the exact ones, from the logged runs."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from studies.papers import CLAIMS
from studies.papers.lian2017.studies import (
    AXES,
    COLLECTIVES,
    DIM,
    EIGENVALUES,
    LR,
    MESSAGE,
    NETWORKS,
    NODES,
    NOISE,
    consensus_distance,
    stationary,
)
from studies.reproduction.logged import Logged
from studies.reproduction.paper import Evidence
from studies.reproduction.verdict import Check, Finding, holds, over_region

L8_REASON = (
    "D-PSGD sends its messages beside the whole gradient, an all-reduce beside the backward pass alone. So D-PSGD "
    "gains most on an all-reduce where messages take as long as a gradient. Where bandwidth is scarcer, it loses: it "
    "sends 2 vectors in a step, a ring all-reduce 2 (p - 1) / p. With latency it gains: its step waits for one "
    "message, an all-reduce for several in turn."
)


def l2(evidence: Evidence) -> Finding:
    """Compare the stationary variance of the mean model, times p, with gamma sigma^2 / (h (2 - gamma h))."""
    expected = LR * NOISE**2 / (2 - LR)
    checks = []
    for nodes in evidence["noise_floor"].values("nodes"):
        runs = evidence["noise_floor"].where(nodes=nodes)
        variance = nodes * float(np.mean([2 * stationary(run, "train_loss") / DIM for run in runs]))
        what = f"p = {nodes}: variance of the mean per coordinate, times p"
        checks.append(CLAIMS["L2"].check("variance", what, variance, expected))
    return CLAIMS["L2"].judged(checks)


def l3b(evidence: Evidence) -> Finding:
    """Compare D-PSGD on a ring with all-reduce: around a ring, and by the fastest of the usual collectives."""
    claim = CLAIMS["L3b"]
    checks: list[Check] = []
    late, slow = "lian2017_5ms", "lian2017_10mbit"
    ring = {p: _communication_ratio(evidence, late, p, "ring") for p in NODES}
    checks += [
        claim.check("ring", f"5 ms, ring all-reduce, p = {p}: ratio of communication times", ring[p], _formula(late, p))
        for p in NODES
    ]
    largest, steps = max(ring[p] for p in NODES if p <= 32), max(_step_ratio(evidence, late, p, "ring") for p in NODES)
    checks += [
        claim.check("messages", "5 ms, ring all-reduce, p <= 32: largest of these", largest),
        claim.check("steps", "5 ms, ring all-reduce, p <= 100: largest ratio of step times", steps),
    ]
    best = {p: _communication_ratio(evidence, late, p, "best") for p in NODES}
    bandwidth = {p: _communication_ratio(evidence, slow, p, "best") for p in NODES}
    checks += [
        claim.check("best_late", "5 ms, best all-reduce: largest ratio of communication times", max(best.values())),
        claim.check(
            "best_slow", "10 Mbit/s, best all-reduce: largest ratio of communication times", max(bandwidth.values())
        ),
    ]
    why = [
        claim.check(
            "best", f"{name}, best, p = {p}: ratio against its closed form", ratios[p] / _best_formula(network, p)
        )
        for name, ratios, network in (("5 ms", best, late), ("10 Mbit/s", bandwidth, slow))
        for p in NODES
    ]
    reason = (
        "Ten times holds against an all-reduce around a ring, whose 2 (p - 1) messages all pay the latency. At 1 "
        "Gbit/s it does not hold against halving and doubling, which pays it 2 log2 p times; on 100 nodes at 10 Gbit/s "
        "it does, by the closed form. Nor does it hold where bandwidth is scarce: there an all-reduce sends "
        "2 (p - 1) / p vectors and a ring of neighbours 2."
    )
    return claim.judged(checks, reason, explained_by=why)


def l4(evidence: Evidence) -> Finding:
    """Count what the busiest node sends and receives in a step."""
    claim = CLAIMS["L4"]
    checks = []
    for run in evidence["ring_bytes"].runs:
        for field in ("bytes_sent_max_node", "bytes_received_max_node"):
            what = f"D-PSGD on a ring, p = {run.nodes}: {field.split('_')[1]} a step, in vectors"
            checks.append(claim.check("vectors", what, run.final(field) / run.final("steps") / MESSAGE, 2.0))
    for run in evidence["server_bytes"].runs:
        nodes = run.setting("nodes")
        name = "synchronous server" if run.algorithm == "sync" else "asynchronous server"
        for field in ("bytes_sent_max_node", "bytes_received_max_node"):
            steps = run.final("samples") / nodes / run.setting("batch_size")
            what = f"{name}, p = {nodes}: {field.split('_')[1]} a step of all, in vectors"
            checks.append(claim.check("vectors", what, run.final(field) / steps / MESSAGE, nodes))
    return claim.judged(checks)


def l5(evidence: Evidence) -> Finding:
    """Compare the stationary consensus distance on several graphs with its closed form, and their order."""
    checks, measured, expected = [], {}, {}
    for name, eigenvalues in EIGENVALUES.items():
        runs = evidence["graphs"].where(topology=name)
        measured[name] = float(np.mean([stationary(run, "consensus_distance", 2) / DIM for run in runs]))
        expected[name] = consensus_distance(eigenvalues)
        what = f"{name}: squared consensus distance per coordinate"
        checks.append(CLAIMS["L5"].check("distance", what, measured[name], expected[name]))
    ordered = [expected[name] for name in sorted(measured, key=measured.__getitem__)]
    same = all(more >= 0.99 * less for less, more in pairwise(ordered))  # torus and hypercube have the same eigenvalues
    checks.append(holds("graphs in the order of the closed form", float(same), "1: the same order", same))
    return CLAIMS["L5"].judged(checks, "Sixteen workers; static symmetric graphs, for which there is a closed form.")


def l8(evidence: Evidence) -> Finding:
    """Compare how much sooner a step ends than with centralised SGD, on the slowest and on the fastest network."""
    claim, cells = CLAIMS["L8"], {}
    for study, (key, values) in AXES.items():
        for collective, name in COLLECTIVES.items():
            gains = {value: _gain(evidence[study], collective, key, value) for value in values}
            fast, slow, best = gains[values[0]], gains[values[-1]], max(values, key=gains.__getitem__)
            what = f"growth of the ratio of step times, from {fast:.3g} to {slow:.3g}"
            what += "" if best == values[-1] else f"; largest with {key}={best:g}: {gains[best]:.3g}"
            cells[f"{study} against {name}"] = claim.judged([claim.check("gain", what, slow / fast)])
    return over_region(cells, L8_REASON)


def _gain(logged: Logged, collective: str, key: str, value: float) -> float:
    """Return how many times as long a step of centralised SGD takes as one of D-PSGD, where a key has this value."""
    setting = {key.replace(".", "__"): value, "cluster__collective": collective}
    central, decentralised = (logged.run(algo=algo, **setting).final("time_s") for algo in ("sync", "dpsgd"))
    return central / decentralised


def _step_ratio(evidence: Evidence, cluster: str, nodes: int, collective: str) -> float:
    """Return how many times as long a step of centralised SGD takes as one of D-PSGD, gradients included."""
    central = evidence["centralised"].run(cluster__name=cluster, nodes=nodes, cluster__collective=collective)
    return central.final("time_s") / evidence["decentralised"].run(cluster__name=cluster, nodes=nodes).final("time_s")


def _communication_ratio(evidence: Evidence, cluster: str, nodes: int, collective: str) -> float:
    """Return the same for gradients that take no time."""
    settings = {"cluster__name": cluster, "nodes": nodes}
    central = evidence["all_reduce_alone"].run(**settings, cluster__collective=collective)
    return central.final("time_s") / evidence["neighbours_alone"].run(**settings).final("time_s")


def _formula(cluster: str, p: int) -> float:
    """Return ring all-reduce over D-PSGD on a ring: [2 (p - 1) (a + N / (p B))] / [a + 2 N / B]."""
    a, bytes_per_s = NETWORKS[cluster]
    message_s = MESSAGE / bytes_per_s
    return 2 * (p - 1) * (a + message_s / p) / (a + 2 * message_s)


def _best_formula(cluster: str, p: int) -> float:
    """Return the fastest of ring, halving-doubling (surplus nodes folded in) and tree, over D-PSGD on a ring."""
    a, bytes_per_s = NETWORKS[cluster]
    m = MESSAGE / bytes_per_s
    q = 2 ** int(math.log2(p))
    folded = 0.0 if p == q else 2 * (a + m)
    halving = 2 * math.log2(q) * a + 2 * (q - 1) / q * m + folded
    tree = 2 * math.ceil(math.log2(p)) * (a + m)
    return min(2 * (p - 1) * (a + m / p), halving, tree) / (a + 2 * m)
