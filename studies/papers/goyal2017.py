"""Goyal et al. 2017: ImageNet in an hour by synchronous SGD with large batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from dsgd.record.reader import Run, number
from dsgd.report.interval import Estimate, estimate
from studies.papers import CLAIMS
from studies.reproduction.logged import Logged
from studies.reproduction.paper import Assumption, Chart, Claim, Evidence, Paper, Study
from studies.reproduction.verdict import Finding, exactly, holds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALL, FULL = ("experiment=goyal2017_small",), ("experiment=goyal2017_resnet50_imagenet",)

RATE = 0.025  # at the smallest batch, where no rule scales it: chosen by study `base`
MARGIN = CLAIMS["A2"].threshold("accuracy")
DOUBLINGS = 3  # within the margin
SEEDS = tuple(range(9))
OTHER_SEEDS = tuple(range(100, 105))  # by which the largest good batch is chosen

SERVERS = (1, 2, 4, 8, 16, 32)
MOST = SERVERS[-1]
TIMING = ("engine=sim", "engine.gradients=none", "algo=sync", f"nodes={','.join(map(str, SERVERS))}")
TIMING += ("cluster=goyal2017", "cluster.collective=ring", "budget.steps=100", "budget.epochs=null")


def _batches(name: str, *overrides: str, seeds: Sequence[int] = SEEDS) -> Study:
    """Return a grid of batches, with the rate of the smallest one: 32 to 4096, and 256 to 65,536 at full scale."""
    return Study(
        name,
        (f"seed={','.join(map(str, seeds))}", "data.validation=0.1", *overrides),
        (*SMALL, "batch_size=4,8,16,32,64,128,256,512", f"optimizer.lr={RATE:g}"),
        (*FULL, "nodes=8,16,32,64,128,256,512,1024,2048"),
    )


def a2(evidence: Evidence) -> Finding:
    """Compare the accuracy of each batch with that of the smallest, seed by seed, with the rule and without."""
    claim = CLAIMS["A2"]
    scaled, unscaled = evidence["scaled"], evidence["unscaled"]
    base, *larger = batches(scaled)
    losses = {batch: estimate(_gains(scaled, scaled, batch, base)) for batch in larger}
    checks = [
        claim.check("accuracy", f"accuracy with a batch of {batch} less that with {base}", losses[batch])
        for batch in larger[:DOUBLINGS]
    ]
    worse = [batch for batch in larger if losses[batch].high < -MARGIN]
    limit = min(worse, default=math.inf)
    checks.append(holds("smallest batch that loses more than 0.5 points", limit, f"<= {larger[-1]}", bool(worse)))
    knee = largest_good_batch(evidence["ladder"])
    gain = estimate(_gains(scaled, unscaled, knee))
    checks.append(claim.check("rule", f"accuracy with the rule less that without, batch of {knee}", gain))
    reason = (
        f"The rate is that of a batch of {base}, scaled by the rule for all others, with a warm-up of 5 epochs. A "
        f"batch of {knee} is the largest that loses no more than 0.5 points on validation samples, by other seeds. "
        "Whether it is the rule's rate that fails or the batch itself, a rate of its own tells, the second measurement."
    )
    (tuned_batch,) = batches(evidence["own_rate"])
    tuned = estimate(_gains(evidence["own_rate"], scaled, tuned_batch, base))
    what = f"accuracy with a batch of {tuned_batch} and a rate tuned for it less that with {base}"
    explanation = claim.check("accuracy", what, tuned)
    return claim.judged(checks, reason, explained_by=[explanation])


def batches(logged: Logged) -> list[int]:
    """Return the batches of all workers, ascending."""
    return sorted({_batch(run) for run in logged.runs})


def largest_good_batch(ladder: Logged) -> int:
    """Return the largest batch up to which accuracy, on validation samples, is within the margin of the smallest's."""
    sizes = batches(ladder)
    return largest_within(sizes, lambda batch: estimate(_gains(ladder, ladder, batch, sizes[0])).median, MARGIN)


def largest_within(sizes: Sequence[int], gain: Callable[[int], float], margin: float) -> int:
    """Return the largest of ascending sizes up to which none loses more than a margin against the first.

    gain: returns by how much a size is better than the first one."""
    first, *larger = sizes
    return [first, *takewhile(lambda size: not gain(size) < -margin, larger)][-1]


def a3(evidence: Evidence) -> Finding:
    """Compare the largest good batch with and without warm-up."""
    claim = CLAIMS["A3"]
    warm, abrupt = evidence["scaled"], evidence["abrupt"]
    gains = {batch: estimate(_gains(warm, abrupt, batch)) for batch in batches(warm)}
    good = largest_good_batch(evidence["ladder"])
    fewer = broken(_at(abrupt, good)) - broken(_at(warm, good))
    checks = [
        claim.check("accuracy", f"accuracy with warm-up less that without, batch of {good}", gains[good]),
        claim.check("seeds", f"batch of {good}: more seeds that diverge or collapse without warm-up", fewer),
    ]
    helped = ", ".join(str(batch) for batch, gain in gains.items() if gain.low > 0) or "none"
    reason = (
        f"One of the two is enough. Batches for which warm-up is better with the whole interval: {helped}. Of batches "
        f"between doublings, above {good}, seeds that diverge or collapse: "
        f"{_broken_between(evidence['between'], good)}. "
        "Where warm-up saves some seeds, others break with it: no batch is good because of it."
    )
    return claim.judged(checks, reason)


def _broken_between(between: Logged, good: int) -> str:
    """Return how many seeds of each batch above the largest good one break, with warm-up and without."""
    warm, abrupt = (Logged(tuple(between.where(schedule__warmup_epochs=epochs))) for epochs in (5, 0))
    above = [batch for batch in batches(warm) if batch > good]
    texts = (f"{broken(_at(warm, batch))} and {broken(_at(abrupt, batch))} with {batch}" for batch in above)
    return f"with warm-up and without, {', '.join(texts)}"


def a4(evidence: Evidence) -> Finding:
    """Judge the scaling efficiency of a timing model of the all-reduce over the servers."""
    claim = CLAIMS["A4"]
    exposed = evidence["no_overlap"]
    all_reduce_ms = 1e3 * (_step_s(exposed, MOST) - _step_s(exposed, 1))
    checks = [
        claim.check("efficiency", f"efficiency, {MOST} servers, with overlap", _efficiency(evidence["overlap"], MOST)),
        claim.check("all_reduce", f"all-reduce over {MOST} servers (ms)", all_reduce_ms),
    ]
    others = "; ".join(f"{_efficiency(evidence[name], MOST):.3f} {what}" for name, what in CONDITIONS)
    reason = (
        "A model of time, no measurement of GPUs. The time of a gradient and the overlap are ours or unconfirmed; a "
        "node is a server, and what its 8 GPUs do among themselves is left out, as are data loading and the operating "
        f"system. With other assumptions the efficiency is {others}."
    )
    return claim.judged(checks, reason)


CONDITIONS = (("no_overlap", "without overlap"), ("jitter", "with overlap, where gradient times vary by 5 %"))


def batches_figure(evidence: Evidence) -> Figure:
    """Draw the test error against the batch: with the rule and warm-up, with the rule alone, with neither."""
    from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart

    named = (("linear scaling, warm-up", "scaled"), ("linear scaling", "abrupt"), ("neither", "unscaled"))
    lines = [
        ChartLine(label, "sync", [(batch, _error(evidence[name], batch)) for batch in batches(evidence[name])], variant)
        for variant, (label, name) in enumerate(named)
    ]
    good = largest_good_batch(evidence["ladder"])
    close = [replace(line, points=[point for point in line.points if point[0] <= 2 * good]) for line in lines]
    axes = {"x": "batch of all workers", "y": "test error", "log_x": True}
    return chart([ChartPanel("all batches", lines=lines, **axes), ChartPanel("up to the knee", lines=close, **axes)])


def scaling_figure(evidence: Evidence) -> Figure:
    """Draw the efficiency against the number of servers."""
    from studies.reproduction.chart_panels import FORMULA, ChartLine, ChartPanel, chart

    named = [("overlap", "with overlap"), ("no_overlap", "without overlap"), ("jitter", "with overlap, jitter of 5 %")]
    lines = [
        ChartLine(label, "sync", [(p, exactly(_efficiency(evidence[name], p))) for p in SERVERS], variant)
        for variant, (name, label) in enumerate(named)
    ]
    lines.append(ChartLine("threshold", FORMULA, [(p, exactly(0.85)) for p in SERVERS]))
    return chart([ChartPanel("ResNet-50, 50 Gbit/s", "servers of 8 GPUs", "scaling efficiency", lines, log_x=True)])


def _batch(run: Run) -> int:
    return run.setting("nodes") * run.setting("batch_size")


def _at(logged: Logged, batch: int) -> list[Run]:
    """Return the runs with a batch, in the order of their seeds."""
    return sorted((run for run in logged.runs if _batch(run) == batch), key=lambda run: run.setting("seed"))


def _accuracy(run: Run) -> float:
    """Return the accuracy at the end, or the last one before the run diverged."""
    known = [value for mark in run.metrics if not math.isnan(value := number(mark.get("test_accuracy")))]
    return known[-1]


def _gains(logged: Logged, other: Logged, batch: int, other_batch: int | None = None) -> list[float]:
    """Return by how much the accuracy with a batch is above that of another study or batch, seed by seed."""
    pairs = zip(_at(logged, batch), _at(other, other_batch or batch), strict=True)
    return [_accuracy(first) - _accuracy(two) for first, two in pairs]


def _error(logged: Logged, batch: int) -> Estimate:
    return estimate([1 - _accuracy(run) for run in _at(logged, batch)])


def broken(runs: Sequence[Run]) -> int:
    """Return how many runs diverged or collapsed."""
    return sum(run.outcome in ("diverged", "collapsed") for run in runs)


def _efficiency(logged: Logged, servers: int) -> float:
    return _step_s(logged, 1) / _step_s(logged, servers)


def _step_s(logged: Logged, servers: int) -> float:
    (run,) = logged.where(nodes=servers)
    return run.final("time_s") / run.setting("budget.steps")


PAPER = Paper(
    key="goyal2017",
    order=6,
    title="Accurate, large minibatch SGD: training ImageNet in 1 hour",
    reference="Goyal et al. 2017, arXiv 1706.02677",
    summary=(
        "Synchronous SGD whose rate grows with the batch, after a warm-up, keeps its accuracy up to a limit. Shown "
        "here with a small network on generated images; the scaling to 32 servers is a model of time."
    ),
    assumptions=(
        Assumption("model and data at full scale", "ResNet-50, ImageNet", "published"),
        Assumption("model and data here", "one hidden layer of 128, 16,000 images of 8 x 8 pixels", "ours"),
        Assumption("batch at full scale", "8192 = 256 GPUs x 32", "published"),
        Assumption("batch here", "32 to 4096 of 8 workers", "ours"),
        Assumption("rate at full scale", "0.1 at a batch of 256, in proportion for others", "published"),
        Assumption("rate here", f"{RATE:g} at a batch of 32, tuned there (study base); in proportion", "ours"),
        Assumption("warm-up", "5 epochs, of 90 at full scale, of 20 here", "published"),
        Assumption("milestones at full scale", "a tenth after 30, 60 and 80 epochs", "unconfirmed"),
        Assumption("schedule here", "half a cosine", "ours"),
        Assumption("momentum, weight decay", "Nesterov 0.9; 1e-4 at full scale, none here", "unconfirmed"),
        Assumption("network between servers", "50 Gbit/s", "unconfirmed"),
        Assumption("latency", "50 us", "ours"),
        Assumption("gradient", "0.23 s: an hour for 90 epochs with 256 GPUs at 90 % efficiency", "unconfirmed"),
        Assumption("overlap", "the all-reduce of buckets during two thirds of that time", "ours"),
        Assumption("within a server of 8 GPUs", "communication is left out", "ours"),
    ),
    studies=(
        Study("base", ("algo=sync", "batch_size=4"), SMALL, tuned=True),
        _batches("ladder", "schedule.linear_scaling=true", "data.evaluate=validation", seeds=OTHER_SEEDS),
        _batches("scaled", "schedule.linear_scaling=true", "schedule.warmup_epochs=5"),
        _batches("abrupt", "schedule.linear_scaling=true", "schedule.warmup_epochs=0"),
        Study(
            "own_rate",
            ("schedule.linear_scaling=false", "schedule.warmup_epochs=5", f"compare.seeds={len(SEEDS)}"),
            (*SMALL, "batch_size=32"),
            (*FULL, "nodes=64"),
            tuned=True,
        ),
        Study(
            "between",
            (
                "schedule.linear_scaling=true",
                "schedule.warmup_epochs=0,5",
                f"seed={','.join(map(str, SEEDS))}",
                "data.validation=0.1",
            ),
            (*SMALL, "batch_size=20,24,28,40,48,56", f"optimizer.lr={RATE:g}"),
            (*FULL, "nodes=320,384,448,640,768,896"),
        ),
        _batches("unscaled", "schedule.linear_scaling=false", "schedule.warmup_epochs=0"),
        Study("overlap", (*TIMING, "algo.overlap=true")),
        Study("no_overlap", (*TIMING, "algo.overlap=false")),
        Study("jitter", (*TIMING, "algo.overlap=true", "cluster.jitter=0.05")),
    ),
    claims=(
        Claim(CLAIMS["A2"], ("ladder", "scaled", "unscaled", "own_rate"), a2),
        Claim(CLAIMS["A3"], ("ladder", "scaled", "abrupt", "between"), a3),
        Claim(CLAIMS["A4"], ("overlap", "no_overlap", "jitter"), a4),
    ),
    charts=(
        Chart(
            "batches",
            "Test error against the batch of all workers: flat with linear scaling, then it fails",
            ("ladder", "scaled", "abrupt", "unscaled"),
            batches_figure,
        ),
        Chart(
            "scaling",
            "Scaling efficiency over servers of 8 GPUs, a model of time; dotted: 0.85",
            ("overlap", "no_overlap", "jitter"),
            scaling_figure,
        ),
    ),
)
