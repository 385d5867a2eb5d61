"""Widen intervals by what seeds do not show, as the protocol of docs/explanation/papers.md says.

The interval over seeds covers what another seed does. Three things more move a measurement:

- A claim has several checks, any of which may err. Every interval has the confidence at which all of a claim hold
  together with 95 % (a union bound), so that any rule of how many must pass errs in 5 % of cases at most.
- The test set is a sample, the same for all seeds and both models. Its error is added to both ends.
- Tuning picks one rate of several that are nearly as good. One algorithm under two names, tuned and measured as if two,
  shows what that does: the null test. Its spread is added to both ends, so that a difference from the threshold that is
  smaller decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from dsgd.report.interval import Estimate

FAMILY_ERROR = 0.05  # probability that any interval of a claim misses the truth


def confidence_of_each(checks: int, sources: int = 1) -> float:
    """Return the confidence of every interval of a claim. sources: of error in an interval, 2 with a test set."""
    if checks < 1 or sources < 1:
        raise ValueError(f"checks and sources must be >= 1, got {checks} and {sources}")
    return 1 - FAMILY_ERROR / (checks * sources)


def sampling_error(deviation: float, test_size: int, confidence: float) -> float:
    """Return the half-width of a mean over the test set. deviation: the standard deviation of one sample's value."""
    if test_size < 1:
        raise ValueError(f"test_size must be >= 1, got {test_size}")
    return NormalDist().inv_cdf((1 + confidence) / 2) * deviation / math.sqrt(test_size)


def gain_error(accuracy: float, other: float, test_size: int, confidence: float) -> float:
    """Return the half-width of the difference of two accuracies on one test set, taken for independent.

    That is too wide for two models that fail on the same images: see `fold_error`."""
    return sampling_error(math.sqrt(accuracy * (1 - accuracy) + other * (1 - other)), test_size, confidence)


def fold_error(differences: np.ndarray, confidence: float) -> float:
    """Return the half-width of the difference of two models on one test set, from its equal parts.

    differences: [seeds, parts]. Their means over the seeds vary from part to part as the test samples do. Two models
    that fail on the same samples hardly differ in any part."""
    means = differences.mean(axis=0)
    quantile = student_quantile((1 + confidence) / 2, len(means) - 1)
    return quantile * float(means.std(ddof=1)) / math.sqrt(len(means))


def student_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t, to 0.1 % from 20 degrees on (Abramowitz and Stegun 26.7.5, two terms)."""
    z = NormalDist().inv_cdf(probability)
    first, second = z**3 + z, 5 * z**5 + 16 * z**3 + 3 * z
    return z + first / (4 * degrees) + second / (96 * degrees**2)


def widened(value: Estimate, error: float) -> Estimate:
    """Return a difference whose interval is longer by an error at each end. Raises ValueError for an unknown error,
    whose interval would miss every threshold."""
    if math.isnan(error):
        raise ValueError("the error of a difference must be a number, got nan")
    return replace(value, low=value.low - error, high=value.high + error)


def widened_ratio(value: Estimate, factor: float) -> Estimate:
    """Return a ratio whose interval is longer by a factor at each end. Raises ValueError for an unknown factor, whose
    interval would miss every threshold."""
    if math.isnan(factor):
        raise ValueError("the error of a ratio must be a factor, got nan")
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
    relative = math.hypot(*(deviation / loss for deviation, loss in zip(deviations, losses, strict=True)))
    return math.exp(sampling_error(relative, test_size, confidence))
