"""Goyal et al. 2017: ImageNet in an hour by synchronous SGD with large batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from studies.evidence.claim import Cells, claim_on_tasks, claim_over_conditions
from studies.evidence.contrast import Contrast, Measure, accuracy_with_rate_of
from studies.evidence.paired_t import difference
from studies.evidence.pipeline import Candidate
from studies.evidence.tasks import MOST_TESTED, TRAIN_SIZES, contender
from studies.papers import CLAIMS, described
from studies.reproduction.logged import Logged
from studies.reproduction.paper import Chart, Claim, Evidence, Study
from studies.reproduction.verdict import Finding, exactly

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SERVERS = (1, 2, 4, 8, 16, 32)
MOST = SERVERS[-1]
TIMING = ("engine=sim", "engine.gradients=none", "algo=sync", f"nodes={','.join(map(str, SERVERS))}")
TIMING += ("cluster=goyal2017", "cluster.collective=ring", "budget.steps=100", "budget.epochs=null")


BATCH = 32  # of a worker, as published
GOOD, WORKERS = (2, 4, 8), (2, 4, 8, 16, 32, 64, 128)
MOST_STEPS = 20_480  # of one worker; more have as many samples
RULE = f"schedule.linear_scaling=true schedule.reference_batch={BATCH}"


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


def ruled(task: str, nodes: int, *more: str) -> Measure:
    """Measure the accuracy of so many workers at equal samples, with the tuned rate of one worker.

    more: options: the rule and the warm-up."""
    name = contender("sync", f"batch_size={BATCH}", MOST_TESTED[task])
    alone, cell = Candidate(task, name, 1), Candidate(task, contender(name, *more), nodes)
    return accuracy_with_rate_of(alone, MOST_STEPS, cell, MOST_STEPS // nodes)


def good_sizes(task: str) -> list[Contrast]:
    """Compare the accuracy of more workers with that of one, and with their own without the rule."""
    alone = ruled(task, 1)
    warm = {nodes: ruled(task, nodes, RULE, warm_up(task)) for nodes in WORKERS}
    what = "accuracy of {} workers minus accuracy of one"
    good = [Contrast("accuracy", what.format(nodes), warm[nodes], alone, difference) for nodes in GOOD]
    limit = Contrast("limit", what.format(WORKERS[-1]), warm[WORKERS[-1]], alone, difference)
    rule = f"accuracy of {GOOD[-1]} workers with the rule minus accuracy without"
    return [*good, limit, Contrast("rule", rule, warm[GOOD[-1]], ruled(task, GOOD[-1]), difference)]


def warm_ups(task: str) -> Cells:
    """Compare the accuracy with warm-up and without, for each number of workers."""
    return {
        f"{nodes} workers": [
            Contrast(
                "accuracy",
                "accuracy with warm-up minus accuracy without",
                ruled(task, nodes, RULE, warm_up(task)),
                ruled(task, nodes, RULE),
                difference,
            )
        ]
        for nodes in WORKERS
    }


def warm_up(task: str) -> str:
    """Return the option of a warm-up over 5 of 90 parts of the samples."""
    return f"schedule.warmup_epochs={5 / 90 * MOST_STEPS * BATCH / TRAIN_SIZES[task]:.4g}"


def _efficiency(logged: Logged, servers: int) -> float:
    return _step_s(logged, 1) / _step_s(logged, servers)


def _step_s(logged: Logged, servers: int) -> float:
    (run,) = logged.where(nodes=servers)
    return run.final("time_s") / run.setting("budget.steps")


PAPER = described(
    "goyal2017",
    studies=(
        Study("overlap", (*TIMING, "algo.overlap=true")),
        Study("no_overlap", (*TIMING, "algo.overlap=false")),
        Study("jitter", (*TIMING, "algo.overlap=true", "cluster.jitter=0.05")),
    ),
    claims=(
        claim_on_tasks(CLAIMS["A2"], good_sizes),
        claim_over_conditions(CLAIMS["A3"], warm_ups),
        Claim(CLAIMS["A4"], ("overlap", "no_overlap", "jitter"), a4),
    ),
    charts=(
        Chart(
            "scaling",
            "Scaling efficiency over servers of 8 GPUs, a model of time; dotted: 0.85",
            ("overlap", "no_overlap", "jitter"),
            scaling_figure,
        ),
    ),
)
