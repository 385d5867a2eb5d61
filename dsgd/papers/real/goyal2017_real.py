"""Goyal et al. 2017 at the real scale: how far a batch can grow, with the linear scaling rule and with warm-up."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from dsgd.papers.goyal2017 import DOUBLINGS, broken
from dsgd.papers.real.charts import on_each_task
from dsgd.papers.real.tasks import MOST_TESTED, NULL, ON_BOTH_TASKS, RATE, SEEDS, TASKS, stated, swept, tuned
from dsgd.report.contest import Contender
from dsgd.report.interval import estimate
from dsgd.reproduction import paired
from dsgd.reproduction.chart_panels import ChartLine, ChartPanel, chart
from dsgd.reproduction.fair import Null, accuracy_gain
from dsgd.reproduction.logged import Logged
from dsgd.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, listed, named, of_task
from dsgd.reproduction.protocol import confidence_of_each
from dsgd.reproduction.verdict import Finding

BATCHES = tuple(32 * 2**k for k in range(8))  # to 4,096
BASE, *LARGER = BATCHES
SAMPLES = 5120 * BASE * 2**DOUBLINGS  # 5,120 steps of the largest batch that has to be good, 40,960 of the smallest
LR = 0.025  # of the smallest batch: on both tasks the best of factor 2, on one seed beforehand
WARM_UP = 5 / 90  # of the samples: the published 5 epochs of 90
TRAIN_SIZES = {"shapes": 144_000, "fashion": 54_000}  # less the samples that are held out of training
LADDER_SEEDS = tuple(range(100, 105))  # by which the largest good batch is chosen
WAYS = {"linear scaling, warm-up": "scaled", "linear scaling": "abrupt", "neither": "unscaled"}  # and their studies
SYNC = {"algo": "sync"}


def a2(evidence: Evidence) -> Finding:
    """Compare the accuracy of each batch with the accuracy of the smallest, and with the accuracy without the rule."""
    claim, scaled, null, count = stated("A2"), evidence["scaled"], _null(evidence), len(BATCHES)
    what = f"accuracy with a batch of {{}} minus accuracy with {BASE}"
    gains = {batch: accuracy_gain(at(scaled, batch), at(scaled, BASE), count, null) for batch in LARGER}
    checks = [claim.check("accuracy", what.format(batch), gains[batch]) for batch in LARGER[:DOUBLINGS]]
    worst = min(LARGER, key=lambda batch: gains[batch].high)
    checks.append(claim.check("limit", what.format(worst), gains[worst]))
    good = largest_good_batch(evidence["ladder"])
    gain = accuracy_gain(at(scaled, good), at(evidence["unscaled"], good), count, null)
    checks.append(claim.check("rule", f"accuracy with the rule minus accuracy without, batch of {good}", gain))
    return claim.judged(checks)


def a3(evidence: Evidence) -> Finding:
    """Compare the largest good batch with warm-up and without."""
    claim, warm, abrupt = stated("A3"), evidence["scaled"], evidence["abrupt"]
    good = largest_good_batch(evidence["ladder"])
    gain = accuracy_gain(at(warm, good), at(abrupt, good), 2, _null(evidence))
    pairs = zip(at(abrupt, good).runs, at(warm, good).runs, strict=True)
    more = estimate([float(broken([without]) - broken([with_it])) for without, with_it in pairs], confidence_of_each(2))
    checks = [
        claim.check("accuracy", f"batch of {good}: accuracy with warm-up minus accuracy without", gain),
        claim.check(
            "seeds", f"batch of {good}: runs that break without it minus runs that break with it, by seed", more
        ),
    ]
    return claim.judged(checks, "One of the two is enough. A run breaks that diverges or ends no better than chance.")


def accuracies(evidence: Evidence, task: str) -> Figure:
    """Draw the test accuracy at the end against the batch: with rule and warm-up, with the rule alone, with neither."""
    lines = []
    for variant, (label, study) in enumerate(WAYS.items()):
        logged = evidence[of_task(study, task)]
        points = [(float(batch), estimate([*map(paired.end_accuracy, at(logged, batch).runs)])) for batch in BATCHES]
        lines.append(ChartLine(label, "sync", points, variant))
    return chart([ChartPanel("", "batch", "test accuracy at the end", lines, log_x=True)])


def largest_good_batch(ladder: Logged) -> int:
    """Return the largest batch up to which accuracy, on held-out samples, is within the margin of the smallest's."""
    margin, good = stated("A2").threshold("accuracy"), BASE
    for batch in LARGER:
        if paired.accuracy_gain(at(ladder, batch), at(ladder, BASE)).median < -margin:
            break
        good = batch
    return good


def at(logged: Logged, batch: int) -> Contender:
    """Return the runs with a batch as a contender that nothing was tuned for."""
    return Contender(f"batch {batch}", "sync", 1, logged.where(batch_size=batch), {}, None, 0)


def _null(evidence: Evidence) -> Null:
    """Return the null test: the smallest batch under two names, its rate tuned for each."""
    return Null(*(evidence[study].contender(algo="sync") for study in ("base", "null_base")))


def _studies() -> Iterator[Study]:
    for task in TASKS:
        alike = ("nodes=1", "cluster=goyal2017", "budget.steps=null", f"budget.samples={SAMPLES}")
        alike += ("eval.every_steps=null", "eval.every_epochs=4", *MOST_TESTED[task])
        base = (*alike, f"batch_size={BASE}", RATE)
        yield tuned("base", task, named([SYNC]), *base)
        yield tuned("null_base", task, named([SYNC]), *base, NULL)
        warm_up = f"schedule.warmup_epochs={WARM_UP * SAMPLES / TRAIN_SIZES[task]:.4g}"
        rule = ("schedule.linear_scaling=true", f"schedule.reference_batch={BASE}")
        grid = (
            "algo=sync",
            *alike,
            f"batch_size={listed(BATCHES)}",
            f"optimizer.lr={LR:g}",
            "data.validation=0.1",
        )
        seeds = f"seed={listed(range(SEEDS))}"
        yield swept("ladder", task, *grid, *rule, warm_up, "data.evaluate=validation", f"seed={listed(LADDER_SEEDS)}")
        yield swept("scaled", task, *grid, *rule, warm_up, seeds)
        yield swept("abrupt", task, *grid, *rule, seeds)
        yield swept("unscaled", task, *grid, seeds)


PAPER = Paper(
    key="goyal2017_real",
    order=6,
    title="Accurate, large minibatch SGD, at the real scale",
    reference="Goyal et al. 2017, arXiv 1706.02677",
    summary=(
        "How far a batch can grow if its rate grows with it, and what warm-up is worth, by "
        "[the protocol](../../docs/explanation/papers.md). The scaling to 32 servers needs no training: it is on "
        "[the page of the small scale](goyal2017.md)."
    ),
    assumptions=(
        Assumption("rule", "rate in proportion to the batch, reached after a linear warm-up", "published"),
        Assumption("warm-up", "5/90 of the samples, as 5 epochs of 90", "published"),
        Assumption("batch", f"{BASE} to {BATCHES[-1]:,} on one worker, as 8 workers with an eighth each", "ours"),
        Assumption(
            "samples", f"{SAMPLES:,} with every batch: 40,960 steps of the smallest, 320 of the largest", "ours"
        ),
        Assumption("rate of the smallest batch", f"{LR:g}; the study `base` tunes it again", "ours"),
        Assumption("momentum", "Nesterov 0.9", "published"),
        Assumption("schedule", "half a cosine after the warm-up", "ours"),
        *ON_BOTH_TASKS,
    ),
    studies=tuple(_studies()),
    claims=(
        Claim(stated("A2"), ("scaled", "unscaled", "ladder", "base", "null_base"), a2, TASKS),
        Claim(stated("A3"), ("scaled", "abrupt", "ladder", "base", "null_base"), a3, TASKS),
    ),
    charts=on_each_task("batches", "Test accuracy against the batch", lambda _: tuple(WAYS.values()), accuracies),
)
