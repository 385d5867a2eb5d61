"""Widen intervals by what seeds do not show, as the protocol of docs/explanation/papers.md says.

The interval over seeds covers what another seed does. Three things more move a measurement:

- A claim has several checks, any of which may err. Every interval has the confidence at which all of a claim hold
  together with 95 % (a union bound), so that any rule of how many must pass errs in 5 % of cases at most.
- The test set is a sample, the same for all seeds. Its error is added to both ends.
- Tuning picks one rate of several that are nearly as good. One algorithm under two names, tuned and measured as if two,
  shows what that does: the null test. Its spread is added to both ends, so that a difference from the threshold that is
  smaller decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

from dsgd.report.interval import Estimate, coverage

FAMILY_ERROR = 0.05  # probability that any interval of a claim misses the truth


def confidence_of_each(checks: int, sources: int = 1) -> float:
    """Return the confidence of every interval of a claim. sources: of error in an interval, 2 with a test set."""
    if checks < 1 or sources < 1:
        raise ValueError(f"checks and sources must be >= 1, got {checks} and {sources}")
    return 1 - FAMILY_ERROR / (checks * sources)


def fewest_seeds(confidence: float) -> int:
    """Return how many seeds an interval of this confidence needs, when it goes from the smallest to the largest."""
    seeds = 1
    while coverage(seeds) < confidence:
        seeds += 1
    return seeds


def sampling_error(deviation: float, test_size: int, confidence: float) -> float:
    """Return the half-width of a mean over the test set. deviation: the standard deviation of one sample's value."""
    if test_size < 1:
        raise ValueError(f"test_size must be >= 1, got {test_size}")
    return NormalDist().inv_cdf((1 + confidence) / 2) * deviation / math.sqrt(test_size)


def gain_error(accuracy: float, other: float, test_size: int, confidence: float) -> float:
    """Return the half-width of the difference of two accuracies on one test set.

    They are taken for independent. That is too wide for two models that fail on the same images; how often they do is
    not recorded."""
    return sampling_error(math.sqrt(accuracy * (1 - accuracy) + other * (1 - other)), test_size, confidence)


def widened(value: Estimate, error: float) -> Estimate:
    """Return a difference whose interval is longer by an error at each end."""
    return replace(value, low=value.low - error, high=value.high + error)


def widened_ratio(value: Estimate, factor: float) -> Estimate:
    """Return a ratio whose interval is longer by a factor at each end."""
    return replace(value, low=value.low / factor, high=value.high * factor)


def null_factor(null: Estimate) -> float:
    """Return the spread of a null test by its ratio: the factor by which its interval reaches away from 1.

    Infinite where a seed of one name did not reach the target: then nothing is decided."""
    return max(null.high, 1 / null.low if null.low > 0 else math.inf, 1.0)


def null_difference(null: Estimate) -> float:
    """Return the spread of a null test by its difference: how far its interval reaches away from 0."""
    return max(abs(null.low), abs(null.high))


def ratio_error(losses: Sequence[float], deviations: Sequence[float], test_size: int, confidence: float) -> float:
    """Return the factor that the test set adds to a ratio of two losses. losses, deviations: of both, per sample."""
    relative = math.hypot(*(one / loss for one, loss in zip(deviations, losses, strict=True)))
    return math.exp(sampling_error(relative, test_size, confidence))
