"""Talyansky et al. 2018: asynchronous SGD without gradient delay."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from dsgd.record.reader import Run
from studies.evidence.claim import Cells, claim_over_conditions
from studies.evidence.contrast import Contrast, Measure, accuracy, accuracy_with_rate_of, apart, at_once, constant
from studies.evidence.paired_t import difference
from studies.evidence.pipeline import Candidate
from studies.evidence.tasks import IMAGES, MOST_TESTED, STEPS, TRAIN_SIZES, contender
from studies.evidence.trial import rate_of
from studies.papers import CLAIMS, described, read_studies
from studies.reproduction.chart_panels import FORMULA, ChartPanel, chart, line_of
from studies.reproduction.logged import throughput
from studies.reproduction.paper import Claim, Evidence
from studies.reproduction.verdict import Finding

MESSAGE, BYTES_PER_S, LATENCY_S, GRADIENT_S = 28e6, 1e9 / 8, 1e-4, 0.1
STUDIES = read_studies("talyansky2018")
TAUS = STUDIES["idle"].numbers("algo.tau")

TAU, MACHINES = 16, 4  # of T7
DELAYFREE = f"delayfree tau={TAU}"
T7_STEPS = {"shapes": 20_480, "fashion": 10_240}  # of each machine
WARM_UP = 0.05  # of the samples
RULE = {  # rate times the number of machines, after a warm-up, by epochs of the task
    task: f"schedule.linear_scaling=true schedule.reference_batch=32 schedule.warmup_epochs={WARM_UP * epochs:.4g}"
    for task, epochs in {task: MACHINES * T7_STEPS[task] // 4 * 32 / TRAIN_SIZES[task] for task in IMAGES}.items()
}
WORKERS, DISTANT, LEVELS = (2, 4, 8, 16), (2, 8, 32), (-6, -2)  # of T4 and T5: and tau, and rates of 0.0125 and 0.05
# the end is at the end of a cycle for every tau, and on the ideal network no average is late
CONSTANT = "schedule=constant cluster=ideal cluster.gradient_s=0.1 cluster.jitter=0"

LR, NOISE, DIM = 0.01, 1.0, 500  # of the quadratic, whose curvature is 1
APART = STUDIES["regret"].numbers("eval.every_steps")[0]  # steps between two marks


def t1(evidence: Evidence) -> Finding:
    """Compare the idle share with that of cycles of beta gradients over which one all-reduce is spread."""
    claim = CLAIMS["T1"]
    shares = _idle_shares(evidence)
    checks = [claim.check("share", f"tau = {tau}: idle share", share, _idle(tau)) for tau, share in shares.items()]
    checks += [claim.check("idle", f"tau = {tau}: idle share", share) for tau, share in shares.items() if tau >= 8]
    return claim.judged(checks)


def t2(evidence: Evidence) -> Finding:
    """Compare the samples per second of four machines with those of one."""
    claim = CLAIMS["T2"]
    rates = {run.nodes: throughput(run) for run in evidence["throughput"].runs}
    checks = [claim.check("samples", "samples per second, 4 machines over 1", rates[4] / rates[1])]
    return claim.judged(checks)


def t6(evidence: Evidence) -> Finding:
    """Compare the loss of the mean with that of sequential SGD, and the workers' distance with its closed form."""
    claim, logged, checks = CLAIMS["T6"], evidence["regret"], []
    counts, taus = logged.values("nodes"), logged.values("algo.tau")
    for nodes in counts:
        for tau in taus:
            runs = logged.where(nodes=nodes, algo__tau=tau)
            start = float(np.mean([run.metrics[0]["train_loss"] for run in runs]))  # each seed has its minimum
            steps = [APART * number for number in range(len(runs[0].metrics))]
            losses = _mean_of_marks(runs, "train_loss")
            sequential = [expected_loss(start, nodes, step) for step in steps]
            distances = _mean_of_marks(runs, "consensus_distance", power=2)
            distance = float(np.mean([expected_distance(nodes, tau, step) for step in steps]))
            mean, late = float(np.mean(sequential)), len(steps) // 2
            what = f"n = {nodes}, tau = {tau}: {{}}"
            # the workers' own loss is that of the mean and half their squared distance from it
            ratio = float(np.mean(losses + distances / 2)) / mean
            end, floor = float(np.mean(losses[late:])), float(np.mean(sequential[late:]))
            checks += [
                claim.check("mean", what.format("loss of the mean"), float(np.mean(losses)), mean),
                claim.check("floor", what.format("the same, second half"), end, floor),
                claim.check("apart", what.format("squared distance"), float(np.mean(distances)), distance),
                claim.check("whole", what.format("loss of the workers over sequential SGD's"), ratio),
            ]
    least, most = _added_at_the_floor(counts[0], taus[0]), _added_at_the_floor(counts[-1], taus[-1])
    return claim.judged(checks, least=least, most=most)


def expected_loss(start: float, nodes: int, step: int) -> float:
    """Return the expected loss of sequential SGD after so many steps, each with the gradients of all nodes in a batch.

    start: its loss before the first. Curvature 1 and rate eta: it falls by (1 - eta)^2 a step, to the noise floor."""
    kept = (1 - LR) ** 2
    return start * kept**step + DIM / 2 * (LR * NOISE) ** 2 / nodes * (1 - kept**step) / (1 - kept)


def expected_distance(nodes: int, tau: int, step: int) -> float:
    """Return the expected squared distance of a worker from the mean after so many steps.

    A cycle has beta = tau / 2 steps, and r = 1 - eta. Within it the deviation of a worker shrinks by r a step and takes
    in noise. At its end a worker is at the average of where all began, and its own displacement: its deviation is then
    (r^beta - 1) times the one that it began the cycle with, and the noise of the cycle."""
    kept, beta = (1 - LR) ** 2, tau // 2
    cycles, late = divmod(step, beta)
    kick = (1 - 1 / nodes) * (LR * NOISE) ** 2 / (1 - kept)
    turned = ((1 - LR) ** beta - 1) ** 2
    begun = kick * (1 - kept**beta) * (1 - turned**cycles) / (1 - turned)
    return DIM * (kept**late * begun + kick * (1 - kept**late))


def _added_at_the_floor(nodes: int, tau: int) -> float:
    """Return what the workers' distance adds to their regret in the long run, over the noise floor of the mean."""
    late = 10_000 * tau
    distance = np.mean([expected_distance(nodes, tau, late + step) for step in range(tau // 2)])
    return float(distance / 2 / expected_loss(0.0, nodes, late))


def _mean_of_marks(runs: Sequence[Run], field: str, power: int = 1) -> np.ndarray:
    """Return a field, to some power, at each mark, the mean over runs: [marks]."""
    return np.mean([[mark[field] ** power for mark in run.metrics] for run in runs], axis=0)


def _idle_shares(evidence: Evidence) -> dict[int, float]:
    """Return the idle share for each tau."""
    return {tau: evidence["idle"].run(algo__tau=tau).final("idle_fraction_mean") for tau in TAUS}


def _idle(tau: int) -> float:
    """Return the idle share: max(0, T - beta t) / max(beta t, T), T of a ring all-reduce of four."""
    all_reduce = 2 * 3 * (LATENCY_S + MESSAGE / (4 * BYTES_PER_S))
    cycle = tau / 2 * GRADIENT_S
    return max(0.0, all_reduce - cycle) / max(cycle, all_reduce)


def accuracies(task: str) -> Cells:
    """Compare the accuracy at the end of four machines with that of one, at equal samples, and by the paper's rule."""
    steps = T7_STEPS[task]
    what = f"tau = {TAU}: test accuracy, {MACHINES} machines minus 1"
    alone, four = (
        Candidate(task, contender(name, MOST_TESTED[task]), p) for name, p in (("sync", 1), (DELAYFREE, MACHINES))
    )
    single = accuracy([alone], MACHINES * steps)
    large = contender("batch_size=32", MOST_TESTED[task])
    ruled = Candidate(task, f"{DELAYFREE} {large} {RULE[task]}", MACHINES)
    alone_large = Candidate(task, f"sync {large}", 1)
    fewer = steps // 4
    by_rule = accuracy_with_rate_of(alone_large, MACHINES * fewer, ruled, fewer)
    single_large = accuracy([alone_large], MACHINES * fewer)
    return {
        "each tuned": [Contrast("accuracy", what, accuracy([four], steps), single, difference)],
        "batch 32, rate times n, warm-up": [Contrast("accuracy", what, by_rule, single_large, difference)],
    }


def distance(task: str, name: str, workers: int, level: int) -> Measure:
    """Measure the distance of two workers after training with a constant rate, on a network without delay."""
    return apart(Candidate(task, f"{name} {CONSTANT}", workers, level=level), STEPS[task])


def exponents(task: str) -> Cells:
    """Fit the growth of the distance of two workers with their number, for each tau and rate."""

    def fitted(tau: int, level: int) -> Measure:
        return at_once([distance(task, f"delayfree tau={tau}", n, level) for n in WORKERS], _exponent)

    return {
        f"rate {rate_of(level):g}": [
            Contrast("exponent", f"tau = {tau}: exponent of n", fitted(tau, level), constant(0.0), difference)
            for tau in DISTANT
        ]
        for level in LEVELS
    }


def growths(task: str) -> Cells:
    """Compare how the distance of two workers grows from 2 to 16 of them, with three methods."""

    def grown(name: str, level: int) -> tuple[Measure, Measure]:
        return distance(task, name, WORKERS[-1], level), distance(task, name, WORKERS[0], level)

    def checks(level: int) -> list[Contrast]:
        what = f"distance with {WORKERS[-1]} workers over that with {WORKERS[0]}: {{}}"
        made = [Contrast("others", what.format(name), *grown(name, level)) for name in ("easgd", "downpour")]
        for tau in DISTANT:
            made.append(Contrast("delayfree", what.format(f"tau = {tau}"), *grown(f"delayfree tau={tau}", level)))
        return made

    return {f"rate {rate_of(level):g}": checks(level) for level in LEVELS}


def _exponent(*distances: float) -> float:
    """Return the exponent of n of a power law fitted to distances; unknown where one is infinite."""
    known = all(map(math.isfinite, distances))
    return float(np.polyfit(np.log(WORKERS), np.log(distances), 1)[0]) if known else math.nan


def idle_figure(evidence: Evidence) -> Figure:
    """Draw the idle share against tau, as the paper does, and its closed form."""
    expected = [(tau, _idle(tau)) for tau in TAUS]
    lines = [
        line_of("delayfree", "delayfree", _idle_shares(evidence).items()),
        line_of("closed form", FORMULA, expected),
    ]
    return chart(ChartPanel("4 machines, 1 Gbit/s, 28 MB", "tau", "idle share", lines, log_x=True))


PAPER = described(
    "talyansky2018",
    Claim(CLAIMS["T1"], t1),
    Claim(CLAIMS["T2"], t2),
    claim_over_conditions(CLAIMS["T4"], exponents),
    claim_over_conditions(CLAIMS["T5"], growths),
    Claim(CLAIMS["T6"], t6),
    claim_over_conditions(CLAIMS["T7"], accuracies),
    charts={"idle": idle_figure},
)
