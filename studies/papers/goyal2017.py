"""Goyal et al. 2017: ImageNet in an hour by synchronous SGD with large batches."""

from __future__ import annotations

from matplotlib.figure import Figure

from studies.evidence.claim import Cells, claim_on_tasks, claim_over_conditions
from studies.evidence.contrast import Contrast, Measure, accuracy_with_rate_of
from studies.evidence.paired_t import difference
from studies.evidence.pipeline import Candidate
from studies.evidence.tasks import MOST_TESTED, TRAIN_SIZES, contender
from studies.papers import CLAIMS, described, read_studies
from studies.reproduction.chart_panels import FORMULA, ChartPanel, chart, line_of
from studies.reproduction.logged import Logged, time_of_step
from studies.reproduction.paper import Claim, Evidence
from studies.reproduction.verdict import Finding

SERVERS = read_studies("goyal2017")["overlap"].numbers("nodes")
MOST = SERVERS[-1]
BATCH = 32  # of a worker, as published
GOOD, WORKERS = (2, 4, 8), (2, 4, 8, 16, 32, 64, 128)
MOST_STEPS = 20_480  # of one worker; more have as many samples
RULE = f"schedule.linear_scaling=true schedule.reference_batch={BATCH}"


def a4(evidence: Evidence) -> Finding:
    """Judge the scaling efficiency of a timing model of the all-reduce over the servers."""
    claim = CLAIMS["A4"]
    alone, together = (time_of_step(evidence["no_overlap"].run(nodes=servers)) for servers in (1, MOST))
    all_reduce_ms = 1e3 * (together - alone)
    checks = [
        claim.check("efficiency", f"efficiency, {MOST} servers, with overlap", _efficiency(evidence["overlap"], MOST)),
        claim.check("all_reduce", f"all-reduce over {MOST} servers (ms)", all_reduce_ms),
    ]
    exposed, varied = (_efficiency(evidence[name], MOST) for name in ("no_overlap", "jitter"))
    return claim.judged(checks, no_overlap=exposed, jitter=varied)


def scaling_figure(evidence: Evidence) -> Figure:
    """Draw the efficiency against the number of servers."""
    named = [("overlap", "with overlap"), ("no_overlap", "without overlap"), ("jitter", "with overlap, jitter of 5 %")]
    lines = [
        line_of(label, "sync", [(p, _efficiency(evidence[name], p)) for p in SERVERS], variant)
        for variant, (name, label) in enumerate(named)
    ]
    lines.append(line_of("threshold", FORMULA, [(p, 0.85) for p in SERVERS]))
    return chart(ChartPanel("ResNet-50, 50 Gbit/s", "servers of 8 GPUs", "scaling efficiency", lines, log_x=True))


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

    def compare(nodes: int) -> list[Contrast]:
        warm, cold = ruled(task, nodes, RULE, warm_up(task)), ruled(task, nodes, RULE)
        return [Contrast("accuracy", "accuracy with warm-up minus accuracy without", warm, cold, difference)]

    return {f"{nodes} workers": compare(nodes) for nodes in WORKERS}


def warm_up(task: str) -> str:
    """Return the option of a warm-up over 5 of 90 parts of the samples."""
    return f"schedule.warmup_epochs={5 / 90 * MOST_STEPS * BATCH / TRAIN_SIZES[task]:.4g}"


def _efficiency(logged: Logged, servers: int) -> float:
    return time_of_step(logged.run(nodes=1)) / time_of_step(logged.run(nodes=servers))


PAPER = described(
    "goyal2017",
    claim_on_tasks(CLAIMS["A2"], good_sizes),
    claim_over_conditions(CLAIMS["A3"], warm_ups),
    Claim(CLAIMS["A4"], a4),
    charts={"scaling": scaling_figure},
)
