"""Talyansky et al. 2018 at the real scale: what a period costs in accuracy, over the number of steps."""

from __future__ import annotations

from collections.abc import Iterator

from dsgd.papers.real.tasks import NULL, ON_BOTH_TASKS, TASKS, accuracy_over_steps, ending, named, stated
from dsgd.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, listed
from dsgd.reproduction.verdict import Finding

NODES, TAU = 4, 16
STEPS = (1280, 5120, 20480)
SYNC, DELAYFREE = {"algo": "sync"}, {"algo": "delayfree", "algo.tau": TAU}
# half a point needs many test images: there are no more of Fashion-MNIST
TEST = {"shapes": ("data.test_size=100000",), "fashion": ()}


def t3(evidence: Evidence) -> Finding:
    """Compare the accuracy at the end with that of all-reduce, at equal samples, over the number of steps."""
    what = f"tau = {TAU}: test accuracy, delayfree minus all-reduce"
    return accuracy_over_steps(
        stated("T3"), evidence["accuracy"], evidence["null_accuracy"], STEPS, what, algo="delayfree"
    )


def _studies() -> Iterator[Study]:
    for task in TASKS:
        steps = f"budget.steps={listed(STEPS)}"
        overrides = (f"nodes={NODES}", steps, "cluster=talyansky2018", "eval.every_steps=640", *TEST[task])
        yield ending("accuracy", task, named([SYNC, DELAYFREE]), *overrides)
        yield ending("null_accuracy", task, named([SYNC]), *overrides, NULL)


PAPER = Paper(
    key="talyansky2018_real",
    order=3,
    title="Asynchronous SGD without gradient delay, at the real scale",
    reference="Talyansky, Kisilev, Melamed, Peterfreund, Verner, Slavin 2018, submission to ICLR 2019.",
    summary=(
        "What delay-free averaging with tau = 16 costs in accuracy, over the number of steps, by "
        "[the protocol](../../docs/explanation/papers.md)."
    ),
    assumptions=(
        Assumption("workers", "4", "published"),
        Assumption("momentum", "Nesterov 0.9, local", "ours"),
        Assumption("schedule", "cosine, over 1,280, 5,120 or 20,480 steps", "ours"),
        *ON_BOTH_TASKS,
    ),
    studies=tuple(_studies()),
    claims=(Claim(stated("T3"), ("accuracy", "null_accuracy"), t3, TASKS),),
)
