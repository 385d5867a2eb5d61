"""PowerSGD at the real scale: what a low rank costs in accuracy, over the number of steps."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from dsgd.report.interval import Estimate
from studies.papers.real.charts import on_each_task
from studies.papers.real.tasks import NULL, ON_BOTH_TASKS, TASKS, accuracy_over_steps, ending, stated
from studies.papers.vogels2019 import CLAIMED, RANKS, P
from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart
from studies.reproduction.paired import accuracy_gain
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, listed, named, of_task
from studies.reproduction.verdict import Finding

STEPS = (320, 1280, 5120)
SYNC = {"algo": "sync"}
TRIED = {"shapes": RANKS, "fashion": (CLAIMED,)}  # a run of the ResNet-8 takes a minute


def b11(evidence: Evidence) -> Finding:
    """Compare the accuracy at the end with that of all-reduce, at equal samples, over the number of steps."""
    what = f"rank {CLAIMED}: test accuracy of PowerSGD minus test accuracy of all-reduce"
    settings = {"algo": "compressed", "algo__rank": CLAIMED}
    return accuracy_over_steps(stated("B11"), evidence["ranks"], evidence["null_ranks"], STEPS, what, **settings)


def gains_over_steps(evidence: Evidence, task: str) -> Figure:
    """Draw the accuracy that each rank loses or gains, against the number of steps."""
    logged = evidence[of_task("ranks", task)]

    def gain(rank: int, steps: int) -> Estimate:
        low_rank = logged.contender(algo="compressed", algo__rank=rank, budget__steps=steps)
        return accuracy_gain(low_rank, logged.contender(algo="sync", budget__steps=steps))

    lines = [
        ChartLine(f"rank {rank}", "compressed", [(steps, gain(rank, steps)) for steps in STEPS], i)
        for i, rank in enumerate(TRIED[task])
    ]
    return chart([ChartPanel("", "steps", "test accuracy, PowerSGD minus all-reduce", lines, log_x=True, level=0.0)])


def _studies() -> Iterator[Study]:
    for task in TASKS:
        setting = (f"nodes={P}", f"budget.steps={listed(STEPS)}", "eval.every_steps=320")
        low_rank = [{"algo": "compressed", "algo.rank": rank} for rank in TRIED[task]]
        yield ending("ranks", task, named([SYNC, *low_rank]), *setting)
        yield ending("null_ranks", task, named([SYNC]), *setting, NULL)


PAPER = Paper(
    key="vogels2019_real",
    order=16,
    title="PowerSGD, at the real scale",
    reference="Vogels, Karimireddy, Jaggi 2019, arXiv 1905.13727",
    summary=(
        "What gradients of rank 2 cost in accuracy, over the number of steps, by "
        "[the protocol](../../docs/explanation/papers.md). The speed of a step needs no training: it is measured on "
        "[the page of the small scale](vogels2019.md)."
    ),
    assumptions=(
        Assumption("start of Q", "what it was in the step before", "published"),
        Assumption("error feedback", "yes", "published"),
        Assumption("momentum", "0.9, of the decoded mean; Nesterov", "ours"),
        Assumption("workers", f"{P}", "ours"),
        Assumption("schedule", "cosine, over 320, 1,280 or 5,120 steps", "ours"),
        *ON_BOTH_TASKS,
    ),
    studies=tuple(_studies()),
    claims=(Claim(stated("B11"), ("ranks", "null_ranks"), b11, TASKS),),
    charts=on_each_task(
        "steps", "Test accuracy of PowerSGD minus that of all-reduce", lambda _: ("ranks",), gains_over_steps
    ),
)
