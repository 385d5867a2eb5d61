"""Kale et al. 2025: DiLoCo whose average travels during the next round, with delayed or with eager outer steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dsgd.algorithms.diloco import DiLoCo
from dsgd.record.reader import Run, number
from dsgd.report.contest import Contender, final_loss
from dsgd.report.interval import Estimate, estimate
from studies.papers import CLAIMS
from studies.papers.zhang2015.stability import growth_per_step
from studies.reproduction.paired import ratio, scores
from studies.reproduction.paper import Assumption, Chart, Claim, Evidence, Paper, Study, listed, newer_small
from studies.reproduction.verdict import Check, Finding, Verdict, exactly

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPUTE_H, DENSE_H = (CLAIMS["B8"].expected(name) for name in ("round", "data_parallel"))  # hours
PARAMETERS, LATENCY_S, P, H, FRAGMENTS, BITS, DENSE_BITS = 1e9, 1e-5, 2, 100, 8, 4, 16
T_RATIO = 161.7  # of the all-reduce without codes over a gradient: what makes 109 hours of 0.67
PUBLISHED = 1e9  # bit/s
BANDWIDTHS = (1e8, 3e8, PUBLISHED, 3e9, 1e10, 1e11, 1e12)
NEAR = (0.3, 1.0, 3.0, 10.0)  # Gbit/s, of a panel of its own
ALL_REDUCE_S = 2 * (P - 1) / P * PARAMETERS * DENSE_BITS / PUBLISHED
GRADIENT_S = ALL_REDUCE_S / T_RATIO
DELAYS = (0, 1, H // FRAGMENTS - 1)  # steps, of streaming; the last is the longest that it has

LATE = ("delayed", "eager")
OVERLAPS = ("none", *LATE)
PERIODS = (5, 20, 50)
WORKERS = 4
CLAIMED, EAGER = PERIODS[-1], CLAIMS["B9"].threshold("eager")
WAYS = ", ".join(f"{{algo.overlap: {overlap}, algo.tau: {tau}}}" for overlap in OVERLAPS for tau in PERIODS)
TUNED = "compare.tune={algo.olr: [0.175, 0.7]}"
OLR, LR = 0.7, 0.1  # outer rate where it is not tuned, published for DiLoCo; rate, of all

SEEDS = 15  # five left B9 open
LONGER = 4  # times the samples, for the cause of a failure

BELOW, ABOVE = 0.98, 1.02  # of the limit
LINE_LR, LINE_TAU = 0.75, 4  # of the quadratic, whose curvature is 1
REMOVED = 1 - (1 - LINE_LR) ** LINE_TAU  # of an error, by a round
LIMITED = (("none", WORKERS), ("delayed", WORKERS), *(("eager", p) for p in (2, WORKERS, 8)))


def b8(evidence: Evidence) -> Finding:
    """Compare the hours of training with those published, at one bandwidth."""
    claim = CLAIMS["B8"]
    none, inner, longest = (hours(evidence, f"delay_{delay}", PUBLISHED) for delay in DELAYS)
    checks = [
        claim.check("data_parallel", "data parallel (hours)", hours(evidence, "data_parallel", PUBLISHED)),
        claim.check("none", "streaming, no overlap (hours)", none),
        claim.check("step", "streaming, one step of overlap (hours)", inner),
    ]
    for overlap in LATE:
        value = hours(evidence, overlap, PUBLISHED)
        checks.append(claim.check("round", f"a whole round of overlap, {overlap} (hours)", value))
    full = COMPUTE_H * (1 + FRAGMENTS * (T_RATIO * BITS / 32 / FRAGMENTS - 1) / H)
    reason = (
        f"The time of a gradient is what makes {COMPUTE_H:g} and {DENSE_H:g} hours of computing alone and of data "
        "parallel training; the rest follows. Published for one step of overlap: 0.88. Streaming with its longest "
        f"overlap, {DELAYS[-1]} of {H} steps, takes {longest:.3g} hours. The published bytes, 441 and 1.10 TB, differ "
        f"by H = {H} times 4, so that what is not compressed has {DENSE_BITS} bits; with 32, one step of overlap "
        f"would take {full:.3g} hours."
    )
    return claim.judged(checks, reason)


def hours(evidence: Evidence, study: str, bandwidth: float) -> float:
    """Return the hours of a training that takes COMPUTE_H without communication."""
    run = evidence[study].run(cluster__bandwidth=bandwidth)
    return COMPUTE_H * run.final("time_s") / run.final("steps") / GRADIENT_S


def b9(evidence: Evidence) -> Finding:
    """Compare the loss at the end with that of DiLoCo without overlap; find whether the limits are where they are."""
    claim = CLAIMS["B9"]
    checks: list[Check] = []
    for overlap, p in LIMITED:
        low, high = sorted(evidence[f"limit_{overlap}_{p}"].runs, key=lambda run: run.setting("algo.olr"))
        shrinks, grows = (growth_per_step(run) ** LINE_TAU for run in (low, high))
        what = f"{overlap}, p = {p}: growth per round at {{}} of the limit"
        checks += [
            claim.check("shrinks", what.format(BELOW), shrinks),
            claim.check("grows", what.format(ABOVE), grows),
        ]
    ratios = {(overlap, tau): _ratio(evidence, overlap, tau) for overlap in LATE for tau in PERIODS}
    what = "H = {}: test loss over that without overlap, {}"
    checks += [claim.check("eager", what.format(tau, "eager"), ratios["eager", tau]) for tau in PERIODS]
    longest = checks[-1]
    late = ratios["delayed", CLAIMED]
    checks.append(claim.check("delayed", what.format(CLAIMED, "delayed"), late))
    others = "; ".join(f"{_told(ratios['delayed', tau])} at H = {tau}" for tau in PERIODS[:-1])
    longer = ratio(*(evidence["longer"].contender(algo__overlap=overlap) for overlap in ("eager", "none")))
    fixed = [evidence["untuned"].where(algo__overlap=overlap) for overlap in OVERLAPS]
    ends = [sum(map(_has_learned, runs)) for runs in fixed]
    reason = (
        f"Delayed: {others}. The rate is {LR:g}, for all. At an outer rate of {OLR:g}, untuned, which is above the "
        f"limits of delayed and eager, {ends[0]} of {len(fixed[0])} runs without overlap end below their first loss, "
        f"{ends[1] or 'none'} of the delayed and {ends[2] or 'none'} of the eager ones. With {LONGER} times the "
        f"samples, the ratio of eager is {_told(longer)} at H = {CLAIMED}."
    )
    # a cause of this check alone: that a run has too few rounds
    alone = all(check is longest or check.verdict is Verdict.PASS for check in checks)
    why = claim.check("eager", f"{longest.what}, {LONGER} times the samples", longer)
    return claim.judged(checks, reason, explained_by=[why] if alone else ())


def tuned_diloco(evidence: Evidence, overlap: str, tau: int) -> Contender:
    """Return DiLoCo with this overlap and so many local steps, tuned."""
    return evidence["tuned"].contender(algo__overlap=overlap, algo__tau=tau)


def times(evidence: Evidence) -> Figure:
    """Draw the hours of training against the bandwidth."""
    from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart

    named = (
        ("data parallel", "sync", "data_parallel"),
        ("streaming, no overlap", "streaming", "delay_0"),
        ("streaming, overlap of a step", "streaming", "delay_1"),
        ("DiLoCo, overlap of a round", "diloco", "eager"),
    )
    lines = [
        ChartLine(name, algo, [(b / 1e9, exactly(hours(evidence, study, b))) for b in BANDWIDTHS], i)
        for i, (name, algo, study) in enumerate(named)
    ]
    near = [replace(line, points=[at for at in line.points if at[0] in NEAR]) for line in lines[1:]]
    axis = "bandwidth (Gbit/s)"
    return chart(
        [
            ChartPanel("line: computing alone", axis, "hours", lines, log_x=True, log_y=True, level=COMPUTE_H),
            ChartPanel("without data parallel", axis, "hours", near, log_x=True, level=COMPUTE_H),
        ]
    )


def losses(evidence: Evidence) -> Figure:
    """Draw the test loss at the end against the number of local steps, and over those without overlap."""
    from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart

    axis, names = "local steps of a round, H", {"none": "no overlap", "delayed": "delayed", "eager": "eager"}
    ends = [
        ChartLine(
            name, "diloco", [(float(tau), estimate(scores(tuned_diloco(evidence, overlap, tau)))) for tau in PERIODS], i
        )
        for i, (overlap, name) in enumerate(names.items())
    ]
    relative = [
        ChartLine(names[late], "diloco", [(float(tau), _ratio(evidence, late, tau)) for tau in PERIODS], i)
        for i, late in enumerate(LATE, start=1)
    ]
    return chart(
        [
            ChartPanel("outer rates tuned", axis, "test loss at the end", ends, log_x=True),
            ChartPanel(f"line: {EAGER:g}", axis, "over that without overlap", relative, log_x=True, level=EAGER),
        ]
    )


def _has_learned(run: Run) -> bool:
    return run.outcome == "completed" and final_loss(run) < number(run.metrics[0].get("test_loss"))


def _ratio(evidence: Evidence, overlap: str, tau: int) -> Estimate:
    return ratio(tuned_diloco(evidence, overlap, tau), tuned_diloco(evidence, "none", tau))


def _told(value: Estimate) -> str:
    return f"{value.median:.3f} [{value.low:.3f}, {value.high:.3f}]"


def _timing(name: str, bits: int, steps: int, *overrides: str) -> Study:
    """Return the runs of a method at all bandwidths. bits: of a number of a whole vector."""
    return Study(
        name,
        (*overrides, f"nodes={P}", "engine=sim", "engine.gradients=none", "model.hidden=[4096]",
         "cluster.collective=ring",
         f"cluster.gradient_s={GRADIENT_S:.9g}", f"cluster.message_bytes={PARAMETERS * bits / 8:.0f}",
         f"cluster.bandwidth={listed(BANDWIDTHS)}", f"cluster.latency_s={LATENCY_S:g}", "budget.epochs=null",
         f"budget.steps={steps}"),
    )  # fmt: skip


def _limit(overlap: str, p: int) -> Study:
    """Return DiLoCo on a line, below and above the limit of its outer rate."""
    limit = DiLoCo(LINE_TAU, overlap=overlap).limit(p) / REMOVED
    return Study(
        f"limit_{overlap}_{p}",
        ("algo=diloco", f"algo.overlap={overlap}", f"algo.tau={LINE_TAU}",
         f"algo.olr={listed((BELOW * limit, ABOVE * limit))}", f"nodes={p}", f"optimizer.lr={LINE_LR:g}",
         "optimizer.momentum=0", "engine=sim", "experiment=quadratic", "data.dim=1", "data.spread=0", "data.noise=0",
         f"budget.steps={400 * LINE_TAU}", f"eval.every_steps={LINE_TAU}"),
    )  # fmt: skip


PAPER = Paper(
    key="kale2025",
    order=15,
    title="Eager updates for overlapped communication and computation in DiLoCo",
    reference="Kale, Douillard, Donchev 2025, arXiv 2502.12996; Streaming DiLoCo, arXiv 2501.18512",
    summary=(
        "DiLoCo's average travels while the workers go on: during one step, fragment by fragment, or during a whole "
        "round. An average that comes a round late costs; the paper's remedy is to use the worker's own share of it "
        "at once. H, the local steps of a round, is `algo.tau`. Losses of its language models are not compared here."
    ),
    assumptions=(
        Assumption("H, fragments, bits, bandwidth of B8", f"{H}, {FRAGMENTS}, {BITS}, 1 Gbit/s", "published"),
        Assumption("parameters, workers of B8", "1e9, 2", "unconfirmed"),
        Assumption("gradient time of B8", f"{GRADIENT_S:.4f} s, an all-reduce without codes over {T_RATIO:g}", "ours"),
        Assumption("numbers without codes in B8", f"{DENSE_BITS} bits: 441 TB over 1.10 TB is 4 H", "ours"),
        Assumption("overlap of a whole round in B8", "DiLoCo, whose vector has the bytes of 4-bit codes", "ours"),
        Assumption("overlap of a step in B8", "streaming: delay of 1", "published"),
        Assumption("outer optimiser", "Nesterov's momentum, 0.9", "published"),
        Assumption("outer rate of B9", f"tuned, from 0.175, 0.35 and 0.7 on; untuned {OLR:g}", "ours"),
        Assumption("rate of B9", f"{LR:g}, for all", "ours"),
        Assumption("local steps", "SGD with momentum 0.9 instead of AdamW", "ours"),
        Assumption("what is trained in B9", "an MLP on generated images of 8 x 8 pixels, 4 workers, batch 16 each, 10 "
                   "epochs", "ours"),
        Assumption("quadratic of B9", f"one parameter, of whose error a round removes {REMOVED:.4f}", "ours"),
    ),
    studies=(
        _timing("data_parallel", DENSE_BITS, 20, "algo=sync", "algo.overlap=false"),
        *(
            _timing(f"delay_{delay}", 32, 20 * H, "algo=streaming", f"algo.tau={H}", f"algo.fragments={FRAGMENTS}",
                    f"algo.bits={BITS}", f"algo.delay={delay}")
            for delay in DELAYS
        ),
        *(_timing(late, BITS, 20 * H, "algo=diloco", f"algo.tau={H}", f"algo.overlap={late}") for late in LATE),
        *(_limit(overlap, p) for overlap, p in LIMITED),
        newer_small(
            "tuned", "algo=diloco", f"compare.contenders=[{WAYS}]", TUNED, f"optimizer.lr={LR:g}", f"nodes={WORKERS}",
            f"compare.seeds={SEEDS}",
        ),
        newer_small(
            "longer", "algo=diloco", "algo.overlap=none,eager", f"algo.tau={CLAIMED}", TUNED, f"optimizer.lr={LR:g}",
            f"nodes={WORKERS}", f"budget.epochs={10 * LONGER}", "eval.every_epochs=10",
        ),
        Study(
            "untuned",
            ("algo=diloco", f"algo.overlap={','.join(OVERLAPS)}", f"algo.tau={listed(PERIODS)}", f"algo.olr={OLR:g}",
             f"optimizer.lr={LR:g}", f"nodes={WORKERS}", "seed=0,1,2,3,4", "eval.every_epochs=5"),
            ("experiment=newer_small",),
        ),
    ),
    claims=(
        Claim(CLAIMS["B8"], ("data_parallel", *(f"delay_{delay}" for delay in DELAYS), *LATE), b8),
        Claim(CLAIMS["B9"], ("tuned", "longer", "untuned", *(f"limit_{overlap}_{p}" for overlap, p in LIMITED)), b9),
    ),
    charts=(
        Chart("times", "Hours of training against the bandwidth",
              ("data_parallel", "delay_0", "delay_1", "eager"), times),
        Chart("losses", "Test loss at the end against the number of local steps", ("tuned",), losses),
    ),
)  # fmt: skip
