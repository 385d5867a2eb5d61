"""Talyansky et al. 2018 at the real scale: what a period costs in accuracy, over the number of steps, and how far apart
workers are, over their number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from dsgd.record.reader import Run
from dsgd.report.interval import Estimate, estimate
from dsgd.report.ratio import paired_ratio
from studies.papers.real.charts import on_each_task
from studies.papers.real.tasks import (
    MOST_TESTED,
    NULL,
    ON_BOTH_TASKS,
    SEEDS,
    TASKS,
    ending,
    stated,
    swept,
)
from studies.reproduction import paired
from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart
from studies.reproduction.fair import Null, accuracy_gain
from studies.reproduction.logged import Logged
from studies.reproduction.pages import shown
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, listed, named, of_task
from studies.reproduction.protocol import confidence_of_each
from studies.reproduction.verdict import Finding, nearness_above, over_region

NODES, TAU = 4, 16
STEPS = (1280, 5120, 20480)
ALONE_STEPS = STEPS[1:]  # of one machine, which sees as many samples as four do in a quarter of the steps
SYNC, DELAYFREE = {"algo": "sync"}, {"algo": "delayfree", "algo.tau": TAU}

WORKERS, TAUS, RATES = (2, 4, 8, 16), (2, 8, 32), (0.0125, 0.05)
FEW, MANY = WORKERS[0], WORKERS[-1]
OTHERS = ("easgd", "downpour")
NEARER = (
    "The claim is a bound without the number of workers in it, so distances that fall with more workers confirm it. An "
    "exponent is unknown where runs diverged."
)
MOVING_RATE = (
    "EASGD's moving rate is 0.9 / p, which is 8 times smaller with 16 workers than with 2. No rate that is the same "
    "for all was tried. A ratio is unknown where runs diverged with 2 workers, too."
)
# a mark is at the end of a cycle for every tau, and on the ideal network no average is late
DISTANCES = ("schedule=constant", f"optimizer.lr={listed(RATES)}", "cluster=ideal", "cluster.gradient_s=0.1")
DISTANCES += ("eval.every_steps=320", f"seed={listed(range(SEEDS))}")


def t7(evidence: Evidence) -> Finding:
    """Compare the accuracy at the end of four machines with that of one, at equal samples, over the number of steps."""
    claim, logged, cells, batch = stated("T7"), evidence["accuracy"], {}, []
    for steps in ALONE_STEPS:
        alone = evidence["alone"].contender(budget__steps=steps)
        late, exact = (logged.contender(algo=algo, budget__steps=steps // NODES) for algo in ("delayfree", "sync"))
        null = Null(alone, evidence["null_alone"].contender(budget__steps=steps))
        gain = accuracy_gain(late, alone, len(ALONE_STEPS), null)
        what = f"tau = {TAU}: test accuracy, {NODES} machines minus 1"
        cell = f"{steps // NODES:,} steps"
        cells[cell] = claim.judged([claim.check("accuracy", what, gain)])
        batch.append(f"{paired.accuracy_gain(exact, alone).median:+.3f} with {cell}")
    note = f"All-reduce on {NODES} machines, whose batch is as large as theirs, minus one machine: {', '.join(batch)}."
    return over_region(cells, note)


def t4(evidence: Evidence) -> Finding:
    """Fit the growth of the distance of two workers with their number, for each tau and rate."""
    claim, confidence, cells = stated("T4"), confidence_of_each(len(TAUS)), {}
    for rate in RATES:
        checks = []
        for tau in TAUS:
            counts = [distances(evidence["drift"], rate, nodes, algo="delayfree", algo__tau=tau) for nodes in WORKERS]
            slopes = [_exponent(seed) for seed in zip(*counts, strict=True)]
            known = all(map(math.isfinite, slopes))
            value = estimate(slopes, confidence) if known else Estimate(math.nan, -math.inf, math.inf, len(slopes))
            checks.append(claim.check("exponent", f"tau = {tau}: exponent of n", value))
        cells[f"rate {rate:g}"] = claim.judged(checks)
    return over_region(cells, NEARER)


def t5(evidence: Evidence) -> Finding:
    """Compare how the distance of two workers grows from 2 to 16 of them, with three methods."""
    claim, confidence, cells, all_others = stated("T5"), confidence_of_each(len(TAUS) + len(OTHERS)), {}, []
    what = f"{{}}: distance with {MANY} workers over that with {FEW}"
    for rate in RATES:

        def growth(study: str, rate: float = rate, **settings: object) -> Estimate:
            few, many = (distances(evidence[study], rate, nodes, **settings) for nodes in (FEW, MANY))
            return paired_ratio(many, few, confidence)

        others = [claim.check("others", what.format(algo), growth("methods", algo=algo)) for algo in OTHERS]
        checks = [max(others, key=nearness_above)]
        for tau in TAUS:
            value = growth("drift", algo="delayfree", algo__tau=tau)
            checks.append(claim.check("delayfree", what.format(f"delayfree, tau = {tau}"), value))
        cells[f"rate {rate:g}"] = claim.judged(checks)
        all_others += [
            f"{shown(check.value)} with {algo} at {rate:g}" for algo, check in zip(OTHERS, others, strict=True)
        ]
    return over_region(cells, f"One of the others is enough: {', '.join(all_others)}. {MOVING_RATE}")


def distances(logged: Logged, rate: float, nodes: int, **settings: object) -> list[float]:
    """Return the median distance of two workers in the second half of a run, by seed; infinite where it diverged."""
    runs = logged.where(optimizer__lr=rate, nodes=nodes, **settings)
    return [_distance(run) for run in sorted(runs, key=lambda run: run.setting("seed"))]


def apart(evidence: Evidence, task: str) -> Figure:
    """Draw the distance of two workers against their number, for each method and rate."""
    drift, methods = (evidence[of_task(name, task)] for name in ("drift", "methods"))
    panels = []
    for rate in RATES:
        lines = [
            ChartLine(f"delayfree, tau = {tau}", "delayfree", _points(drift, rate, algo__tau=tau), i)
            for i, tau in enumerate(TAUS)
        ]
        lines += [ChartLine(algo, algo, _points(methods, rate, algo=algo)) for algo in OTHERS]
        title = f"constant rate {rate:g}"
        panels.append(ChartPanel(title, "workers", "distance of two workers", lines, log_x=True, log_y=True))
    return chart(panels)


def _points(logged: Logged, rate: float, **settings: object) -> list[tuple[float, Estimate]]:
    """Return the distance over the number of workers, for those that the study has."""
    return [(float(nodes), estimate(distances(logged, rate, nodes, **settings))) for nodes in logged.values("nodes")]


def _distance(run: Run) -> float:
    return late_distance(run) if run.outcome == "completed" else math.inf


def _exponent(by_nodes: Sequence[float]) -> float:
    """Return the exponent of a power law fitted to the distances; infinite where a run diverged."""
    known = all(map(math.isfinite, by_nodes))
    return float(np.polyfit(np.log(WORKERS), np.log(by_nodes), 1)[0]) if known else math.inf


def late_distance(run: Run) -> float:
    """Return the median over pairs of their distance, over the marks of the second half of a run."""
    marks = [mark["pairwise_distance_median"] for mark in run.metrics]
    return float(np.mean(marks[len(marks) // 2 :]))


def _studies() -> Iterator[Study]:
    for task in TASKS:
        steps = f"budget.steps={listed(STEPS)}"
        overrides = (f"nodes={NODES}", steps, "cluster=talyansky2018", "eval.every_steps=640", *MOST_TESTED[task])
        yield ending("accuracy", task, named([SYNC, DELAYFREE]), *overrides)
        alone = ("nodes=1", f"budget.steps={listed(ALONE_STEPS)}", "eval.every_steps=640", *MOST_TESTED[task])
        yield ending("alone", task, named([SYNC]), *alone)
        yield ending("null_alone", task, named([SYNC]), *alone, NULL)
        workers, taus = f"nodes={listed(WORKERS)}", f"algo.tau={listed(TAUS)}"
        yield swept("drift", task, "algo=delayfree", taus, workers, *DISTANCES)
        yield swept("methods", task, f"algo={','.join(OTHERS)}", f"nodes={FEW},{MANY}", *DISTANCES)


PAPER = Paper(
    key="talyansky2018_real",
    order=3,
    title="Asynchronous SGD without gradient delay, at the real scale",
    reference="Talyansky, Kisilev, Melamed, Peterfreund, Verner, Slavin 2018, submission to ICLR 2019.",
    summary=(
        "What delay-free averaging on four machines costs in accuracy against one machine, with tau = 16, over the "
        "number of steps, and how the distance of two workers depends on tau and on their number, by "
        "[the protocol](../../docs/explanation/papers.md)."
    ),
    assumptions=(
        Assumption("workers", "4 in T7", "published"),
        Assumption("momentum", "Nesterov 0.9, local", "ours"),
        Assumption("schedule", "cosine, over 1,280, 5,120 or 20,480 steps; constant in T4 and T5", "ours"),
        Assumption("network of T4 and T5", "no delay, so that no average is late", "ours"),
        Assumption("rivals in T5", "EASGD with tau = 10 and a moving rate of 0.9 / p; Downpour with tau = 1", "ours"),
        *ON_BOTH_TASKS,
    ),
    studies=tuple(_studies()),
    claims=(
        Claim(stated("T4"), ("drift",), t4, TASKS),
        Claim(stated("T5"), ("drift", "methods"), t5, TASKS),
        Claim(stated("T7"), ("accuracy", "alone", "null_alone"), t7, TASKS),
    ),
    charts=on_each_task(
        "distances", "Distance of two workers against their number", lambda _: ("drift", "methods"), apart
    ),
)
