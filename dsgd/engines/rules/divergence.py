"""Divergence as a loss shows it: that of a mark, and that of each mini-batch, which every gradient has at hand.

A mark's loss is beyond the limit above `eval.diverged_factor` times the first mark's, or times 1 if that was lower.
The loss of one mini-batch is noisier. If the other samples of the training set had no loss at all, b of n samples of
mean loss L would make it b/n L: so a mini-batch is beyond the limit only where its b samples alone would put a mark
there, and no outlier in a small batch ends a run.

A run that stays within the limit and learns nothing has collapsed: it ends with a higher training loss than at its
first mark, and than 1, and with an accuracy of not much more than chance, where there are classes.
"""

from __future__ import annotations

import math

from dsgd.experiment import Experiment
from dsgd.problem.problem import Problem

CHANCE = 1.5  # times the accuracy of guessing among equally frequent classes is not much more than that


class Diverged(ArithmeticError):
    """Raised in place of a gradient whose mini-batch has a loss beyond the limit."""


def limit_of_mark(experiment: Experiment, first: float) -> float:
    """Return the largest loss of a mark with which a run goes on. first: the loss of the first mark."""
    return experiment.eval.diverged_factor * max(first, 1.0)


def limit_of_batch(experiment: Experiment, problem: Problem) -> float:
    """Return the largest loss of a mini-batch with which a run goes on: by that of worker 0's first batch at the common
    start, so that it is the same in every process, and after resuming."""
    first = problem.batch_loss(problem.start, problem.start_buffers, 0, 0)
    return limit_of_mark(experiment, first) * experiment.epoch_samples / experiment.batch_size


def is_beyond(loss: float, limit: float) -> bool:
    """Tell whether a loss is no number, infinite or above the limit."""
    return not math.isfinite(loss) or loss > limit


def has_collapsed(first: float | None, loss: float | None, accuracy: float | None, classes: int | None) -> bool:
    """Tell whether a run that has used up its budget has collapsed.

    first, loss: training losses of its first and its last mark. accuracy: at the last one. None: not measured."""
    if first is None or loss is None:
        return False
    return loss > max(first, 1.0) and (accuracy is None or not classes or accuracy <= CHANCE / classes)
