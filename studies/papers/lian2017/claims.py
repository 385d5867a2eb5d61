"""Judge the claims of Lian et al. from the logged runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from dsgd.record.reader import Run
from dsgd.report.contest import Contender, final_loss
from dsgd.report.interval import Estimate
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
    TAUS,
    WORKERS,
    consensus_distance,
    stationary,
)
from studies.reproduction.logged import Logged
from studies.reproduction.paired import ratio
from studies.reproduction.paper import Evidence
from studies.reproduction.verdict import Check, Finding, holds, over_region

L8_REASON = (
    "D-PSGD sends its messages beside the whole gradient, an all-reduce beside the backward pass alone. So D-PSGD "
    "gains most on an all-reduce where messages take as long as a gradient. Where bandwidth is scarcer, it loses: it "
    "sends 2 vectors in a step, a ring all-reduce 2 (p - 1) / p. With latency it gains: its step waits for one "
    "message, an all-reduce for several in turn."
)


def l1(evidence: Evidence) -> Finding:
    """Compare the loss of the mean model at the end with that of all-reduce, at equal samples, each tuned."""
    short, long = (_loss_ratios(evidence[name].contenders) for name in ("per_sample", "longer"))
    claim = CLAIMS["L1"]
    checks = [claim.check("loss", "published order: final test loss over that of all-reduce", short["before"])]
    why = [claim.check("loss", "the same with four times the epochs", long["before"])]
    reason = (
        f"With the gradient after mixing the ratio is {short['after'].median:.3f}. The paper's theorem speaks of small "
        f"rates and many steps. At one rate for both, held-out loss over that of all-reduce, one seed: "
        f"{_by_rate(evidence['per_sample'])}; with four times the epochs {_by_rate(evidence['longer'])}. At "
        "rates that are tuned the two are not equal per sample."
    )
    return claim.judged(checks, reason, explained_by=why)


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


def l3a(evidence: Evidence) -> Finding:
    """Compare D-PSGD on a ring with a synchronous single server."""
    claim = CLAIMS["L3a"]
    step = {(c, p): _step_ratio(evidence, c, p, "star") for c in NETWORKS for p in NODES}
    slow = "lian2017_10mbit"
    largest = max(step[slow, p] for p in NODES if p <= 16)
    checks = [
        claim.check("steps", "10 Mbit/s, p <= 16: largest ratio of step times", largest),
        claim.check("share", "10 Mbit/s, p = 100: ratio over p", step[slow, 100] / 100),
        claim.check("time", "10 Mbit/s, p = 16: ratio of times to target", _contest_ratio(evidence, "star")),
    ]
    other = ", ".join(f"{step['lian2017_5ms', p]:.1f} at p = {p}" for p in NODES)
    reason = (
        f"At 5 ms, with gradients of 50 ms, the ratio of step times is {other}. D-PSGD gains less in time to "
        "the target than in time of a step: per sample it learns less, at all but small rates. Held-out loss over that "
        f"of all-reduce at one rate for both, one seed: {_by_rate(evidence['slow'])}."
    )
    return claim.judged(checks, reason)


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


def l6(evidence: Evidence) -> Finding:
    """Compare the time to the target of EAMSGD with that of D-PSGD, at 10 Gbit/s, each tuned."""
    claim, logged, checks = CLAIMS["L6"], evidence["elastic"], []
    for tau in TAUS:
        value = ratio(logged.contender(algo="easgd", algo__tau=tau), logged.contender(algo="dpsgd"))
        checks.append(claim.check("sooner", f"tau = {tau}: time to the target, EAMSGD over D-PSGD", value))
    return claim.judged(checks)


def l7(evidence: Evidence) -> Finding:
    """Compare how long one worker and how long several take to the target, each tuned."""
    claim, logged, checks = CLAIMS["L7"], evidence["speed_up"], []
    alone = logged.contender(nodes=1)
    for p in WORKERS:
        value = ratio(alone, logged.contender(nodes=p))
        checks.append(claim.check(f"p{p}", f"time to the target, one worker over {p}", value))
    return claim.judged(checks)


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


def _contest_ratio(evidence: Evidence, collective: str) -> Estimate:
    """Return the ratio of the times to the target: of centralised SGD to D-PSGD."""
    central = evidence["slow"].contender(algo="sync", cluster__collective=collective)
    return ratio(central, evidence["slow"].contender(algo="dpsgd"))


def _by_rate(logged: Logged) -> str:
    """Return the held-out loss of the published D-PSGD over that of all-reduce, for each rate at which both learn."""
    losses = [
        {
            run.setting("optimizer.lr"): final_loss(run)
            for run in logged.tuning
            if run.outcome == "completed" and chosen(run)
        }
        for chosen in (_is_published, lambda run: run.algorithm == "sync")
    ]
    ratios = {rate: loss / losses[1][rate] for rate, loss in sorted(losses[0].items()) if rate in losses[1]}
    return ", ".join(f"{ratio:.3f} at {rate:g}" for rate, ratio in ratios.items())


def _is_published(run: Run) -> bool:
    return run.algorithm == "dpsgd" and run.setting("algo.gradient") == "before"


def _loss_ratios(contenders: Sequence[Contender]) -> dict[str, Estimate]:
    """Return the final losses of each order of mixing over those of all-reduce, by the order's name."""
    reference = next(contender for contender in contenders if contender.algo == "sync")
    return {
        contender.runs[0].setting("algo.gradient"): ratio(contender, reference)
        for contender in contenders
        if contender.algo == "dpsgd"
    }
