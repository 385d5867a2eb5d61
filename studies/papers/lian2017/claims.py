"""Judge the claims of Lian et al. about times, and the exact ones, and draw the figures, from the logged runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure

from dsgd.record.reader import Run
from studies.papers import CLAIMS, read_studies
from studies.reproduction.chart_panels import ChartPanel, chart, line_of
from studies.reproduction.logged import Logged, time_of_step
from studies.reproduction.paper import Evidence
from studies.reproduction.verdict import Finding, holds, over_region

STUDIES = read_studies("lian2017")
NODES = STUDIES["centralised"].numbers("nodes")
AXES = {  # of L8: the key that changes, and its values, the fastest network first
    name: (key, STUDIES[name].numbers(key))
    for name, key in (("bandwidth", "cluster.bandwidth"), ("latency", "cluster.latency_s"))
}
COMMUNICATION = ("all_reduce_alone", "neighbours_alone")  # with gradients that take no time
COLLECTIVES = {"star": "a server", "ring": "a ring all-reduce", "best": "the best all-reduce"}
LATE, SLOW = "lian2017_5ms", "lian2017_10mbit"
NETWORKS = {SLOW: (1e-3, 1e7 / 8), LATE: (5e-3, 1e9 / 8)}  # latency in s, bytes/s
MESSAGE = 1_078_888  # bytes: 269,722 parameters of ResNet-20
LR, NOISE, DIM = 0.1, 1.0, 500  # of the quadratic
BURN_IN = 400  # steps; the slowest mode of the mean decays by 0.9 a step
TURN = 2 * np.pi * np.arange(16) / 16
SQUARE = 2 * np.cos(np.pi / 2 * np.arange(4))
EIGENVALUES = {  # of the mixing matrices of 16 nodes
    "ring": (1 + 2 * np.cos(TURN)) / 3,
    "torus": ((1 + SQUARE[:, None] + SQUARE) / 5).ravel(),
    "hypercube": np.repeat(1 - 2 * np.arange(5) / 5, [1, 4, 6, 4, 1]),
    "complete": np.array([0.0] * 15 + [1.0]),
}


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
    ring, best, narrow = (
        {p: _ratio(evidence, COMMUNICATION, network, p, collective) for p in NODES}
        for network, collective in ((LATE, "ring"), (LATE, "best"), (SLOW, "best"))
    )
    checks = [
        claim.check("ring", f"5 ms, ring all-reduce, p = {p}: ratio of communication times", ratio, _formula(LATE, p))
        for p, ratio in ring.items()
    ]
    few = max(ring[p] for p in NODES if p <= 32)
    steps = max(_ratio(evidence, ("centralised", "decentralised"), LATE, p, "ring") for p in NODES)
    largest = "best all-reduce: largest ratio of communication times"
    checks += [
        claim.check("messages", "5 ms, ring all-reduce, p <= 32: largest of these", few),
        claim.check("steps", "5 ms, ring all-reduce, p <= 100: largest ratio of step times", steps),
        claim.check("best_late", f"5 ms, {largest}", max(best.values())),
        claim.check("best_slow", f"10 Mbit/s, {largest}", max(narrow.values())),
    ]
    why = [
        claim.check("best", f"{name}, best, p = {p}: ratio against its closed form", ratio / _best_formula(network, p))
        for name, ratios, network in (("5 ms", best, LATE), ("10 Mbit/s", narrow, SLOW))
        for p, ratio in ratios.items()
    ]
    return claim.judged(checks, explained_by=why)


def l4(evidence: Evidence) -> Finding:
    """Count what the busiest node sends and receives in a step."""
    claim = CLAIMS["L4"]
    names = {"dpsgd": "D-PSGD on a ring", "sync": "synchronous server", "downpour": "asynchronous server"}
    checks = []
    for run in (*evidence["ring_bytes"].runs, *evidence["server_bytes"].runs):
        p, ring = run.setting("nodes"), run.algorithm == "dpsgd"
        steps = run.final("steps") if ring else run.final("samples") / p / run.setting("batch_size")
        for direction in ("sent", "received"):
            vectors = run.final(f"bytes_{direction}_max_node") / steps / MESSAGE
            what = f"{names[run.algorithm]}, p = {p}: {direction} a step{'' if ring else ' of all'}, in vectors"
            checks.append(claim.check("vectors", what, vectors, 2.0 if ring else p))
    return claim.judged(checks)


def l5(evidence: Evidence) -> Finding:
    """Compare the stationary consensus distance on several graphs with its closed form, and their order."""
    checks, measured, expected = [], {}, {}
    for name, eigenvalues in EIGENVALUES.items():
        measured[name] = measured_distance(evidence, name)
        expected[name] = consensus_distance(eigenvalues)
        what = f"{name}: squared consensus distance per coordinate"
        checks.append(CLAIMS["L5"].check("distance", what, measured[name], expected[name]))
    ordered = [expected[name] for name in sorted(measured, key=measured.__getitem__)]
    same = all(more >= 0.99 * less for less, more in pairwise(ordered))  # torus and hypercube have the same eigenvalues
    checks.append(holds("graphs in the order of the closed form", float(same), "1: the same order", same))
    return CLAIMS["L5"].judged(checks)


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
    return over_region(cells, claim.reason)


def _gain(logged: Logged, collective: str, key: str, value: float) -> float:
    """Return how many times as long a step of centralised SGD takes as one of D-PSGD, where a key has this value."""
    setting = {key.replace(".", "__"): value, "cluster__collective": collective}
    central, decentralised = (logged.run(algo=algo, **setting).final("time_s") for algo in ("sync", "dpsgd"))
    return central / decentralised


def _ratio(evidence: Evidence, studies: tuple[str, str], cluster: str, nodes: int, collective: str) -> float:
    """Return how many times as long a step of centralised SGD takes as one of D-PSGD. studies: of both."""
    central, peers = (evidence[name] for name in studies)
    with_all_reduce = central.run(cluster__name=cluster, nodes=nodes, cluster__collective=collective)
    return with_all_reduce.final("time_s") / peers.run(cluster__name=cluster, nodes=nodes).final("time_s")


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


def measured_distance(evidence: Evidence, graph: str) -> float:
    """Return the squared consensus distance per coordinate in the long run, the mean over seeds."""
    runs = evidence["graphs"].where(topology=graph)
    return float(np.mean([stationary(run, "consensus_distance", 2) / DIM for run in runs]))


def stationary(run: Run, field: str, power: int = 1) -> float:
    """Return the mean of a field, or of a power of it, over the marks after the burn-in."""
    per_step = run.setting("nodes") * run.setting("batch_size")
    return float(np.mean([mark[field] ** power for mark in run.metrics if mark["samples"] > BURN_IN * per_step]))


def consensus_distance(eigenvalues: np.ndarray) -> float:
    """Return the squared consensus distance per coordinate in the long run, gamma^2 sigma^2 / p times the sum of
    1 / (1 - (lambda_k - gamma)^2) over all eigenvalues of the mixing matrix but the largest, for curvature 1."""
    others = np.sort(eigenvalues)[:-1]
    return float(LR**2 * NOISE**2 / len(eigenvalues) * np.sum(1 / (1 - (others - LR) ** 2)))


def networks(evidence: Evidence) -> Figure:
    """Draw the time of a step against the bandwidth, and against the latency, as the paper does of an epoch."""
    units = {"bandwidth": ("0.1 ms", "bandwidth (Mbit/s)", 1e6), "latency": ("1 Gbit/s", "latency (ms)", 1e-3)}
    panels = []
    for study, (key, _) in AXES.items():
        title, label, unit = units[study]
        panels.append(_step_times(title, label, evidence[study].runs, key, unit))
    return chart(*panels, notes=["8 nodes; times of ResNet-20: messages of 1.08 MB, gradients of 50 ms"])


def _step_times(title: str, label: str, runs: Sequence[Run], key: str, unit: float = 1) -> ChartPanel:
    """Return the time of a step against a setting, in this unit, for each way of communicating."""
    lines = []
    for variant, name in enumerate(dict.fromkeys(map(_called, runs))):
        way = [run for run in runs if _called(run) == name]
        # D-PSGD's are the same with every collective
        points = {run.setting(key) / unit: time_of_step(run) for run in way}
        lines.append(line_of(name, way[0].algorithm, sorted(points.items()), variant))
    return ChartPanel(title, label, "time of a step (virtual s)", lines, log_x=True, log_y=True)


def _called(run: Run) -> str:
    """Name a way of communicating: D-PSGD on a ring, or the collective."""
    return "D-PSGD, ring" if run.algorithm == "dpsgd" else f"{run.setting('cluster.collective')} (sync)"
