"""Lin et al. 2020: local SGD, and all-reduce before it (post-local SGD)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dsgd.record.reader import number
from dsgd.report.contest import Contender
from dsgd.report.interval import estimate
from studies.papers import CLAIMS
from studies.reproduction.logged import Logged
from studies.reproduction.paired import accuracy_gain, ratio
from studies.reproduction.paper import Assumption, Chart, Claim, Evidence, Paper, newer_small
from studies.reproduction.verdict import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PERIODS = (1, 4, 16, 64)
EPOCHS, DECAYS, P, BATCH, TRAINED = 20, (10, 15), 16, 16, 14_400  # 16,000 samples, a tenth of them held out
SWITCH = DECAYS[0] * TRAINED // (P * BATCH)  # steps until the first decay
POST = 16  # period after the switch
WAYS = "[{algo: sync}, " + ", ".join(f"{{algo: localsgd, algo.tau: {tau}}}" for tau in PERIODS)
WAYS += f", {{algo: localsgd, algo.tau: {POST}, algo.switch: {SWITCH}}}]"


def b5(evidence: Evidence) -> Finding:
    """Rank the losses at the end by the period, and compare post-local SGD's accuracy with that of all-reduce."""
    claim = CLAIMS["B5"]
    logged = evidence["periods"]
    losses = [[number(run.final("train_loss")) for run in of_period(logged, tau).runs] for tau in PERIODS]
    ranks = estimate([spearman([seed[i] for seed in losses]) for i in range(len(losses[0]))])
    exact = logged.contender(algo="sync")
    post = accuracy_gain(of_period(logged, POST, SWITCH), exact)
    checks = [
        claim.check("ranks", "Spearman's rank correlation of tau and the training loss at the end", ranks),
        claim.check("accuracy", "post-local SGD: test accuracy minus that of all-reduce", post),
    ]
    worst = ratio(of_period(logged, PERIODS[-1]), exact)
    null = ratio(of_period(logged, 1), exact)
    reason = (
        f"At tau = {PERIODS[-1]} the test loss is {worst.median:.3f} [{worst.low:.3f}, {worst.high:.3f}] times that of "
        "all-reduce. The paper speaks of networks that fit their training data and generalise worse with large "
        "batches; here 256 samples are no large batch. A null test: local SGD with tau = 1 is all-reduce under another "
        f"name. Tuned for itself, it ends at {null.median:.3f} [{null.low:.3f}, {null.high:.3f}] times the test loss."
    )
    return claim.judged(checks, reason)


def spearman(values: Sequence[float]) -> float:
    """Return the rank correlation of values with their order; 1 where they ascend."""
    ranks = np.argsort(np.argsort(values))
    return float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])


def of_period(logged: Logged, tau: int, switch: int = 0) -> Contender:
    """Return the contender with a period, after so many steps of all-reduce."""
    return logged.contender(algo="localsgd", algo__tau=tau, algo__switch=switch)


def periods(evidence: Evidence) -> Figure:
    """Draw losses and accuracies at the end against the period."""
    from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart

    logged = evidence["periods"]
    panels = []
    for field, name in (("train_loss", "training loss"), ("test_accuracy", "test accuracy")):
        ends = [(float(tau), _end(of_period(logged, tau), field)) for tau in PERIODS]
        post = _end(of_period(logged, POST, SWITCH), field)
        exact = _end(logged.contender(algo="sync"), field)
        lines = [
            ChartLine("local SGD", "localsgd", ends),
            ChartLine("post-local SGD", "localsgd", [(float(POST), post)], 1),
            ChartLine("all-reduce", "sync", [(1.0, exact)]),
        ]
        panels.append(ChartPanel(f"{name}, each tuned", "tau", f"{name} at the end", lines, log_x=True))
    return chart(panels)


def _end(contender: Contender, field: str):
    return estimate([number(run.final(field)) for run in contender.runs])


PAPER = Paper(
    key="lin2020",
    order=12,
    title="Don't use large mini-batches, use local SGD",
    reference="Lin, Stich, Patel, Jaggi 2020, arXiv 1808.07217; Ortiz et al. 2021, arXiv 2110.08133",
    summary=(
        "Workers make tau steps by themselves and then average their parameters: from the beginning (local SGD), or "
        "after a time of all-reduce (post-local SGD), which the paper finds to generalise better than large batches."
    ),
    assumptions=(
        Assumption("switch of post-local SGD", "the first decay of the rate", "published"),
        Assumption("its period", f"{POST}", "published"),
        Assumption("schedule", f"{EPOCHS} epochs, the rate falls to a tenth after {DECAYS[0]} and {DECAYS[1]}", "ours"),
        Assumption("momentum", "0.9, local and kept at averages; Nesterov", "published"),
        Assumption("what is trained", "an MLP on generated images of 8 x 8 pixels, 16 workers, batch 16 each", "ours"),
    ),
    studies=(
        newer_small(
            "periods", f"compare.contenders={WAYS}", f"nodes={P}", f"budget.epochs={EPOCHS}", "schedule=step",
            f"schedule.milestones=[{DECAYS[0]},{DECAYS[1]}]", "data.test_size=4000",
        ),
    ),
    claims=(
        Claim(CLAIMS["B5"], ("periods",), b5),
    ),
    charts=(Chart("periods", "Training loss and test accuracy at the end against tau", ("periods",), periods),),
)  # fmt: skip
