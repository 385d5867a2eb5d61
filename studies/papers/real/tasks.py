"""The tasks on which claims about learning are judged, and what all studies of them have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsgd.record.reader import Run
from dsgd.report.contest import Contender
from studies.papers import CLAIMS
from studies.reproduction.criterion import Statement
from studies.reproduction.fair import Null, accuracy_gain
from studies.reproduction.logged import Logged
from studies.reproduction.paper import Assumption, Evidence, Study, of_task
from studies.reproduction.verdict import Finding, over_region

TASKS = ("shapes", "fashion")
TEXT = "text"  # a third task, of methods that were made for language models
# the last 13,700 windows are for test: they make 100 equal parts
BOOK = ("data.path=kjv.txt", "data.test_share=0.09954", "eval.test_folds=true")
# the test loss that one worker, tuned, has at 80 % of a budget of 20,480 steps: study `target` of jin2016
TARGETS: Mapping[str, float] = {"shapes": 0.3, "fashion": 0.28}
SEEDS = 10  # of measuring
PROTOCOL = ("compare.tune_seeds=3", "compare.tune_fine=true", f"compare.seeds={SEEDS}")
# with a target the number of steps is tuned, too: a cosine schedule that ends late reaches it late
BUDGET = "compare.tune={optimizer.lr: [0.025, 0.2], budget.steps: [640, 5120]}"
RATE = "compare.tune={optimizer.lr: [0.025, 0.2]}"  # of SGD
TO_TARGET = (BUDGET, "compare.tune_values=40", "target.stop=true")
ON_BOTH_TASKS = (
    Assumption("task shapes", "an MLP of 128 on 160,000 generated images of 8 x 8 pixels, batch 8", "ours"),
    Assumption("task fashion", "a ResNet-8 of 8 channels, BatchNorm, on Fashion-MNIST at 14 x 14, batch 16", "ours"),
    Assumption("augmentation", "none", "ours"),
    Assumption("tuning", "rates in factors of sqrt 2 about the best; numbers of steps in factors of 2", "ours"),
)
COSINE_ON_BOTH_TASKS = (Assumption("schedule", "cosine, over 5,120 steps", "ours"), *ON_BOTH_TASKS)
ON_TEXT = Assumption("task text", "a transformer of width 32 on the King James Bible, AdamW, batch 4", "ours")
# of claims about half a point of accuracy or less: there are no more images of Fashion-MNIST
MOST_TESTED: Mapping[str, tuple[str, ...]] = {"shapes": ("data.test_size=100000",), "fashion": ()}
NULL = "seed=1000"  # of the same algorithm under another name: no seed is one of the study's


def race(name: str, task: str, contenders: str, *overrides: str) -> Study:
    """Return a study of times to the target, each contender with the rate and the number of steps that suit it."""
    target = f"target.loss={TARGETS[task]}"
    return tuned(name, task, contenders, target, *TO_TARGET, *overrides)


def ending(name: str, task: str, contenders: str, *overrides: str) -> Study:
    """Return a study of what 5,120 steps come to, each contender with the rate that suits it."""
    return tuned(name, task, contenders, RATE, *overrides)


def tuned(name: str, task: str, contenders: str, *overrides: str) -> Study:
    """Return a study of contenders on one task, tuned and measured as the protocol says."""
    return Study(
        of_task(name, task),
        (f"compare.contenders=[{contenders}]", *PROTOCOL, *overrides),
        small=None,
        tuned=True,
        real=setting(task),
    )


def swept(name: str, task: str, *overrides: str) -> Study:
    """Return a study of a grid on one task."""
    return Study(of_task(name, task), overrides, small=None, real=setting(task))


def setting(task: str) -> tuple[str, ...]:
    """Return what all runs of a task have in common."""
    return (f"experiment=real_{task}", *(BOOK if task == TEXT else ()))


def stated(id: str) -> Statement:
    """Return a claim with what it passes with at this scale."""
    return CLAIMS[id].real or CLAIMS[id]


def sync(contenders: Sequence[Contender], nodes: int, overlap: bool) -> Contender:
    """Return all-reduce on so many nodes."""
    (contender,) = (
        candidate
        for candidate in contenders
        if candidate.algo == "sync"
        and candidate.nodes == nodes
        and candidate.runs[0].setting("algo.overlap") == overlap
    )
    return contender


def untuned(algo: str, runs: Sequence[Run]) -> Contender:
    """Return runs of a grid as a contender that nothing was tuned for."""
    return Contender(algo, algo, runs[0].setting("nodes"), runs, {}, None, 0)


def null_of(evidence: Evidence, study: str, nodes: int, null: str | None = None) -> Null:
    """Return the null test of a study on so many nodes. null: the study that has it; None: `null_` and the name."""
    first = sync(evidence[study].contenders, nodes, overlap=True)
    return Null(first, evidence[null or f"null_{study}"].contender(algo="sync", nodes=nodes))


def accuracy_over_steps(
    claim: Statement,
    logged: Logged,
    nulls: Logged,
    steps: Sequence[int],
    what: str,
    reason: str = "",
    **settings: object,
) -> Finding:
    """Compare the accuracy at the end with the accuracy of all-reduce, at equal samples, for each number of steps.

    settings: of the contender that is compared. nulls: the null tests of all-reduce. reason: of the finding."""
    cells = {}
    for count in steps:
        candidate = logged.contender(**settings, budget__steps=count)
        exact = logged.contender(algo="sync", budget__steps=count)
        null = Null(exact, nulls.contender(algo="sync", budget__steps=count))
        gain = accuracy_gain(candidate, exact, len(steps), null)
        cells[f"{count:,} steps"] = claim.judged([claim.check("accuracy", what, gain)])
    return over_region(cells, reason)
