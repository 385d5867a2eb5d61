"""Goyal et al. 2017 at the real scale: how many workers can share a rate by the linear scaling rule, and warm-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

from matplotlib.figure import Figure

from dsgd.record.reader import Run
from dsgd.report.contest import Contender
from dsgd.report.interval import Estimate, estimate
from studies.papers.real.charts import on_each_task
from studies.papers.real.tasks import MOST_TESTED, ON_BOTH_TASKS, RATE, SEEDS, TASKS, stated, swept, tuned, untuned
from studies.reproduction import paired
from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart
from studies.reproduction.fair import accuracy_gain
from studies.reproduction.logged import Logged
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, listed, named, of_task
from studies.reproduction.protocol import confidence_of_each
from studies.reproduction.verdict import Finding, nearness_below

BATCH = 32  # of a worker, as published: batch norm sees no more with more workers
WORKERS = tuple(2**k for k in range(8))
MORE = WORKERS[1:]
DOUBLINGS = 3  # of the number of workers, within the margin
SAMPLES = 5120 * BATCH * 2**DOUBLINGS  # 5,120 steps of the number of workers that has to be good, 40,960 of one
WARM_UP = 5 / 90  # of the samples: the published 5 epochs of 90
TRAIN_SIZES = {"shapes": 144_000, "fashion": 54_000}  # less the samples that are held out of training
LADDER_SEEDS = tuple(range(100, 105))  # by which the largest good number of workers is chosen
WAYS = {"linear scaling, warm-up": "scaled", "linear scaling": "abrupt", "neither": "unscaled"}  # and their studies
# of one worker: on shapes chosen by study `base`; on fashion the best of factor 2, on one seed, until that has run
RATES = {"shapes": 0.0176777, "fashion": 0.025}


def a2(evidence: Evidence) -> Finding:
    """Compare the accuracy of more workers with the accuracy of one, and with their own without the rule."""
    claim, scaled, unscaled = stated("A2"), evidence["scaled"], evidence["unscaled"]
    alone, count = at(unscaled, 1), len(WORKERS)
    what = "accuracy of {} workers minus accuracy of one"
    gains = {nodes: accuracy_gain(at(scaled, nodes), alone, count) for nodes in MORE}
    checks = [claim.check("accuracy", what.format(nodes), gains[nodes]) for nodes in MORE[:DOUBLINGS]]
    limits = [claim.check("limit", what.format(nodes), gain) for nodes, gain in gains.items()]
    good = largest_good(evidence["ladder"])
    rule = accuracy_gain(at(scaled, good), at(unscaled, good), count)
    checks += [
        max(limits, key=nearness_below),
        claim.check("rule", f"accuracy of {good} workers with the rule minus accuracy without", rule),
    ]
    base = evidence["base"].contender(algo="sync")
    rate, used = base.chosen["optimizer.lr"], alone.runs[0].setting("optimizer.lr")
    return claim.judged(checks, f"The rate of one worker is {used:g}; tuned, it is {rate:g}.")


def a3(evidence: Evidence) -> Finding:
    """Compare the largest good number of workers with warm-up and without."""
    claim, good = stated("A3"), largest_good(evidence["ladder"])
    warm, abrupt = (at(evidence[study], good) for study in ("scaled", "abrupt"))
    what = f"{good} workers: {{}}"
    gain = accuracy_gain(warm, abrupt, 2)
    pairs = zip(abrupt.runs, warm.runs, strict=True)
    more = estimate([float(broken([without]) - broken([within])) for without, within in pairs], confidence_of_each(2))
    checks = [
        claim.check("accuracy", what.format("accuracy with warm-up minus accuracy without"), gain),
        claim.check("seeds", what.format("whether a seed breaks without it, minus whether it breaks with it"), more),
    ]
    reason = f"One of the two is enough. A run breaks that diverges or collapses. {_with_others(evidence, good)}"
    return claim.judged(checks, reason)


def _with_others(evidence: Evidence, good: int) -> str:
    """Say what warm-up gains with other numbers of workers, and with which all runs break."""
    gains, breaking = [], []
    for nodes in WORKERS[1:]:
        warm, abrupt = (at(evidence[study], nodes) for study in ("scaled", "abrupt"))
        if all(broken([run]) for run in (*warm.runs, *abrupt.runs)):
            breaking.append(f"{nodes}")
        elif nodes != good:
            gains.append(f"{paired.accuracy_gain(warm, abrupt).median:+.4f} with {nodes}")
    lost = f" All runs break, with warm-up and without, with {', '.join(breaking)}." if breaking else ""
    return f"With other numbers of workers warm-up gains {', '.join(gains)}.{lost}"


def largest_good(ladder: Logged) -> int:
    """Return the largest number of workers, doubling from one, with which the accuracy on held-out samples stays within
    the margin of A2."""
    alone = at(ladder, 1)
    margin = stated("A2").threshold("accuracy")
    return largest_within(WORKERS, lambda nodes: paired.accuracy_gain(at(ladder, nodes), alone).median, margin)


def largest_within(sizes: Sequence[int], gain: Callable[[int], float], margin: float) -> int:
    """Return the largest of ascending sizes up to which none loses more than a margin against the first.

    gain: returns by how much a size is better than the first one."""
    first, *larger = sizes
    return [first, *takewhile(lambda size: not gain(size) < -margin, larger)][-1]


def broken(runs: Sequence[Run]) -> int:
    """Return how many runs diverged or collapsed."""
    return sum(run.outcome in ("diverged", "collapsed") for run in runs)


def at(logged: Logged, nodes: int) -> Contender:
    """Return the runs of so many workers."""
    return untuned("sync", logged.where(nodes=nodes))


def accuracies(evidence: Evidence, task: str) -> Figure:
    """Draw the test accuracy at the end against the number of workers, with the rule and warm-up and without."""

    def accuracy(study: str, nodes: int) -> Estimate:
        return estimate([paired.end_accuracy(run) for run in at(evidence[of_task(study, task)], nodes).runs])

    lines = []
    for variant, (label, study) in enumerate(WAYS.items()):
        points = [(float(nodes), accuracy(study, nodes)) for nodes in evidence[of_task(study, task)].values("nodes")]
        lines.append(ChartLine(label, "sync", points, variant))
    return chart([ChartPanel("", f"workers with a batch of {BATCH}", "test accuracy at the end", lines, log_x=True)])


def _studies() -> Iterator[Study]:
    seeds = f"seed={listed(range(SEEDS))}"
    for task in TASKS:
        alike = (f"batch_size={BATCH}", "cluster=goyal2017", "budget.steps=null", f"budget.samples={SAMPLES}")
        alike += ("eval.every_steps=null", "eval.every_epochs=4", *MOST_TESTED[task])
        yield tuned("base", task, named([{"algo": "sync"}]), "nodes=1", *alike, RATE)
        grid = ("algo=sync", *alike, f"optimizer.lr={RATES[task]:g}", "data.validation=0.1")
        every_number, more = f"nodes={listed(WORKERS)}", f"nodes={listed(MORE)}"
        rule = ("schedule.linear_scaling=true", f"schedule.reference_batch={BATCH}")
        warm_up = f"schedule.warmup_epochs={WARM_UP * SAMPLES / TRAIN_SIZES[task]:.4g}"
        ladder = ("data.evaluate=validation", f"seed={listed(LADDER_SEEDS)}")
        yield swept("ladder", task, *grid, every_number, *rule, warm_up, *ladder)
        yield swept("scaled", task, *grid, more, *rule, warm_up, seeds)
        yield swept("abrupt", task, *grid, more, *rule, seeds)
        yield swept("unscaled", task, *grid, every_number, seeds)


PAPER = Paper(
    key="goyal2017_real",
    order=6,
    title="Accurate, large minibatch SGD, at the real scale",
    reference="Goyal et al. 2017, arXiv 1706.02677",
    summary=(
        "How many workers can train, at equal samples, if the rate grows with their number, and what warm-up is worth, "
        "by [the protocol](../../docs/explanation/papers.md). The scaling to 32 servers needs no training: it is on "
        "[the page of the small scale](goyal2017.md)."
    ),
    assumptions=(
        Assumption("rule", "rate in proportion to the number of workers, reached after a linear warm-up", "published"),
        Assumption("batch of a worker", f"{BATCH} on both tasks", "published"),
        Assumption("warm-up", "5/90 of the samples, as 5 epochs of 90", "published"),
        Assumption("samples", f"{SAMPLES:,} in every run: 40,960 steps of one worker, 320 of 128", "ours"),
        Assumption("momentum", "Nesterov 0.9", "published"),
        Assumption("schedule", "half a cosine after the warm-up", "ours"),
        Assumption("tuning", "the rate of one worker; nothing else, so that there is no null test", "ours"),
        *(each for each in ON_BOTH_TASKS if each.what != "tuning"),
    ),
    studies=tuple(_studies()),
    claims=(
        Claim(stated("A2"), ("scaled", "unscaled", "ladder", "base"), a2, TASKS),
        Claim(stated("A3"), ("scaled", "abrupt", "ladder"), a3, TASKS),
    ),
    charts=on_each_task("workers", "Test accuracy against workers", lambda _: tuple(WAYS.values()), accuracies),
)
