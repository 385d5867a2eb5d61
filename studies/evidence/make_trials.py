"""Make the trials and the clocks that pipelines need and that are not in the archive, a batch at a time."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from dsgd.cli.arguments import full_option
from dsgd.cli.compose import ConfigTree, Job
from dsgd.cli.local_sweep import label_jobs
from dsgd.comparison.entries import FOLDERS
from dsgd.record.reader import Run, number, read_env
from studies.evidence.contrast import TENTHS, Need
from studies.evidence.paired_t import REPLICATES
from studies.evidence.pipeline import Missing, Pipelines, all_of
from studies.evidence.tasks import TASKS
from studies.evidence.trial import MEASURE, Clock, Trial, TrialOutcome

BATCH = 24  # trials between two writes of the archive
CLOCK_STEPS = 512  # of each worker: the time of a step is their mean
DIGITS = 7
FOLD_FIELDS = ("test_fold_losses", "test_fold_accuracies")  # of a record
JITTER = ("cluster.jitter_distribution=lognormal", "cluster.jitter=0.1")  # under which models are trained
CLUSTER = "cluster=jin2016"  # of clocks that name no other
ONCE = ("eval.every_steps=null", "eval.every_epochs=null")  # evaluated at the end alone


def make_missing(
    needs: Sequence[Need],
    results: Path,
    run: Callable[[Sequence[Job], Path], Sequence[Run]],
    folder: Path,
    quick: bool = False,
    batch: int = BATCH,
) -> None:
    """Make what is missing, and add it to the archive, a batch at a time: first three replicates of all, then as many
    as decide; if quick, one of all.

    needs: the most important first. run: returns the records of jobs, which are below a folder. folder: of the records
    until they are in the archive. Raises what `run` does."""
    pipelines, tree = Pipelines.read(results, quick), ConfigTree()
    for most in (1,) if quick else REPLICATES:
        while missing := missing_of(needs, pipelines, most):
            wanted = missing[:batch]
            jobs = [job for each in wanted for job in tree.grid(overrides_of(each), FOLDERS)]
            label_jobs(jobs)
            folder.mkdir(parents=True, exist_ok=True)
            for each, record in zip(wanted, run(jobs, folder), strict=True):
                if isinstance(each, Trial):
                    pipelines.trials[each] = outcome_of(each, record)
                else:
                    pipelines.clocks[each] = step_s(record)
            pipelines.write(results)
            shutil.rmtree(folder)


def missing_of(needs: Sequence[Need], pipelines: Pipelines, most: int) -> list[Trial | Clock]:
    """Return the runs that these needs ask for next, each once. most: replicates."""
    try:
        all_of(partial(need, pipelines, most) for need in needs)
    except Missing as line:
        return list(dict.fromkeys(line.wanted))
    return []


def overrides_of(wanted: Trial | Clock) -> list[str]:
    """Return the overrides of dsgd-run that make a trial or a clock."""
    algo, *options = wanted.contender.split()
    keys = [*map(full_option, options)]
    if isinstance(wanted, Clock):
        timing = ["engine=sim", "engine.gradients=none", "budget.epochs=null", *ONCE]
        timing += [] if any(key.startswith("cluster=") for key in keys) else [CLUSTER]
        overlap = [f"algo.overlap={str(wanted.overlap).lower()}"] if algo == "sync" else []
        jitter = [JITTER[0], f"cluster.jitter={wanted.jitter:g}"] if wanted.jitter else []
        size = [f"nodes={wanted.nodes}", f"budget.steps={CLOCK_STEPS}", f"seed={wanted.replicate}"]
        return [*timing, f"algo={algo}", *overlap, *jitter, *keys, *size]
    measured = wanted.stage == MEASURE
    held_out = ["data.validation=0.1", f"eval.test_folds={str(measured).lower()}"]
    held_out += [] if measured else ["data.evaluate=validation"]
    size = [f"budget.steps={wanted.steps}", f"optimizer.lr={wanted.rate:.6g}", f"seed={wanted.seed}"]
    head = [*TASKS[wanted.task], f"algo={algo}", f"nodes={wanted.nodes}"]
    return [*head, *JITTER, *keys, *ONCE, *held_out, *size]


def outcome_of(trial: Trial, run: Run) -> TrialOutcome:
    """Return what the record of a trial says."""
    commit = str(read_env(run.folder).get("commit"))[:12]
    loss = number(run.final("test_loss"))
    if run.outcome == "diverged" or math.isnan(loss):
        return TrialOutcome(math.inf, 0.0, (), commit, apart=math.inf)
    parts, accuracies = (
        tuple(map(_rounded, np.array(run.final(name)).reshape(TENTHS, -1).mean(1))) if trial.stage == MEASURE else ()
        for name in FOLD_FIELDS
    )
    accuracy, apart = number(run.final("test_accuracy")), number(run.metrics[-1]["pairwise_distance_median"])
    return TrialOutcome(_rounded(loss), _rounded(accuracy), parts, commit, accuracies, _rounded(apart))


def step_s(run: Run) -> float:
    """Return the seconds of a step of each worker, in the mean over workers and steps."""
    steps: Iterable[int] = run.final("worker_steps")
    return number(run.final("time_s")) / float(np.mean(list(steps)))


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
