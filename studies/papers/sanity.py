"""What must hold in any program that compares these algorithms: no paper, but what the others rest on."""

from __future__ import annotations

import math
from statistics import median

from dsgd.record.reader import Run
from dsgd.report.prediction import Pair, median_step_s, pairs, step_s
from studies.papers import CLAIMS, described
from studies.reproduction.logged import Logged
from studies.reproduction.paper import Claim, Evidence
from studies.reproduction.verdict import Check, Finding, holds

GRADIENT_S, LATENCY_S, BYTES_PER_S, STEPS = 0.2, 1e-4, 1e9 / 8, 8  # of the studies of times


def g1(evidence: Evidence) -> Finding:
    """Compare the only parameter of one worker, step by step, with that of synchronous SGD, which is plain SGD."""
    plain = _distances(evidence["alone"].run(algo="sync"))
    checks = []
    for run in evidence["alone"].runs:
        if run.algorithm != "sync":
            largest = max(abs(distance - other) for distance, other in zip(_distances(run), plain, strict=True))
            checks.append(CLAIMS["G1"].check("difference", f"`{run.algorithm}`: largest difference of x", largest))
    return CLAIMS["G1"].judged(checks)


def g2(evidence: Evidence) -> Finding:
    """Compare records of the same configuration: made again, and with two threads."""
    checks = []
    for name, what in (("again", "made again"), ("threads", "with two threads")):
        pairs = list(zip(evidence["first"].runs, evidence[name].runs, strict=True))
        times = ("time_s", "samples", "bytes_sent_total", "idle_fraction_mean", "staleness_mean")
        same = all(first_run.final(field) == other.final(field) for first_run, other in pairs for field in times)
        checks.append(holds(f"times, bytes and counts, {what}", float(same), "1: equal", same))
        apart = max(
            abs(mark[field] - other[field])
            for first, second in pairs
            for mark, other in zip(first.metrics, second.metrics, strict=True)
            for field in ("train_loss", "test_loss", "test_accuracy")
        )
        checks.append(CLAIMS["G2"].check(name, f"losses and accuracies, largest difference, {what}", apart))
    return CLAIMS["G2"].judged(checks)


def g3(evidence: Evidence) -> Finding:
    """Judge by how much what communication conserves has drifted at any mark, relative to the vectors' lengths."""
    checks = []
    for name, precision in (("double", "64 bits"), ("single", "32 bits")):
        for run in evidence[f"conserved_fp{precision[:2]}"].runs:
            drift = max(mark["mean_drift"] or 0.0 for mark in run.metrics)
            what = f"`{run.algorithm}`, {precision}: largest relative drift"
            checks.append(CLAIMS["G3"].check(name, what, drift))
    return CLAIMS["G3"].judged(checks)


def g4(evidence: Evidence) -> Finding:
    """Compare simulated times of whole runs with closed forms."""
    checks = []
    for name in CLAIMS["G4"].studies:
        runs = evidence[name].runs
        what = f"{name.replace('_', ' ')}, {len(runs)} runs: largest relative error"
        checks.append(CLAIMS["G4"].check("error", what, max(map(_relative_error, runs))))
    return CLAIMS["G4"].judged(checks)


def g5(evidence: Evidence) -> Finding:
    """Compare simulated runs with those of real processes on four hosts: time of a step, and losses at the end."""
    losses: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    checks = _predicted(evidence["hosts"])
    for run in evidence["hosts"].runs:
        if run.final("test_loss") is not None:
            of_engine = losses.setdefault((run.setting("cluster.name"), run.algorithm), {"wall": {}, "virtual": {}})
            of_engine[str(run.clock)][run.setting("seed")] = run.final("test_loss")
    for (cluster, algo), engines in losses.items():
        real, simulated = engines["wall"], engines["virtual"]
        apart = median(abs(real[seed] - simulated[seed]) for seed in real)
        noise = max(simulated.values()) - min(simulated.values())
        what = f"{cluster}, `{algo}`: losses apart, over their range over seeds"
        checks.append(CLAIMS["G5"].check("losses", what, apart / noise))
    relieved = evidence["relieved"]
    explained_by = _predicted(relieved, " a quarter of the messages,")
    return CLAIMS["G5"].judged(checks, explained_by, relieved=_spread(relieved))


def _predicted(logged: Logged, condition: str = "") -> list[Check]:
    """Compare the predicted times of a step with the measured ones."""
    what = "{0.cluster}, `{0.algorithm}`:{1} time of a step, predicted over measured"
    return [CLAIMS["G5"].check("step", what.format(pair, condition), pair.ratio) for pair in _timed_pairs(logged)]


def _timed_pairs(logged: Logged) -> list[Pair]:
    """Return the predictions beside the measurements, of runs whose gradients pause as on an accelerator."""
    return pairs([run for run in logged.runs if run.setting("data.pause_s") != 0])


def _spread(logged: Logged) -> str:
    """Return the predicted time of a step over that of each measured run, from the smallest to the largest."""
    ranges = []
    for pair in _timed_pairs(logged):
        ratios = [median_step_s(pair.predicted) / step_s(run) for run in pair.measured]
        ranges.append(f"{min(ratios):.2f} to {max(ratios):.2f} with {pair.cluster}")
    return ", ".join(ranges)


def _distances(run: Run) -> list[float]:
    """Return the distance of the only parameter from its minimum at every mark; its curvature is 1."""
    return [math.sqrt(2 * mark["train_loss"]) for mark in run.metrics]


def _relative_error(run: Run) -> float:
    expected = _seconds(run.algorithm, run.setting("nodes"), run.setting("cluster.message_bytes") / BYTES_PER_S)
    return abs(run.final("time_s") / expected - 1)


def _seconds(algo: str, p: int, message_s: float) -> float:
    """Return the time of all steps of a run. message_s: N / B."""
    t, a, m, k = GRADIENT_S, LATENCY_S, message_s, STEPS
    all_reduce = 2 * (p - 1) * (a + m / p)
    if algo == "sync":  # nothing overlaps
        return k * (t + all_reduce)
    if algo == "dpsgd":  # on a ring
        return k * max(t, a + min(2, p - 1) * m)
    if algo == "delayfree":  # cycles of two steps
        return k / 2 * max(2 * t, all_reduce)
    if algo == "gossip":
        return k * t
    round_s = t + 2 * a + 2 * m if algo == "easgd" else t + 4 * a + 2 * m
    if p * m > round_s:  # the server's port is never free
        return (k * p + 1) * m + 2 * a + t + (2 * a if algo == "downpour" else 0.0)
    return k * round_s + (p - 1) * m  # the last worker waits once, behind all others


PAPER = described(
    "sanity",
    Claim(CLAIMS["G1"], g1),
    Claim(CLAIMS["G2"], g2),
    Claim(CLAIMS["G3"], g3),
    Claim(CLAIMS["G4"], g4),
    Claim(CLAIMS["G5"], g5),
)
