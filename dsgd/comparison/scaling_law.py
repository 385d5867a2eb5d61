"""Fit how a number depends on size, forecast it for a larger size, and find bad fits.

The law is y = offset + scale (size / middle)^power with offset >= 0, fitted to the logarithms of all values by least
squares. The interval of a forecast is the prediction interval of that fit, to first order, for the mean over as many
seeds as each size was measured on. It always counts the offset as unknown: three sizes cannot show that it is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from dsgd.report.interval import CONFIDENCE, Estimate, t_quantile

BENT = 0.05  # probability at which a law is called bent that is not
SIZES = 3  # fewest that a law of three numbers needs
STARTS = (0.0, 0.2, 0.5, 0.8)  # offsets to begin with, as shares of the smallest value; 0 stays
ROUNDS, HALVINGS, ENOUGH = 60, 10, 1e-9  # of the iteration: at most, of a step, and the gain at which it ends
STEEPEST, LARGEST = 20.0, 300.0  # power, and logarithm of the scale


@dataclass(frozen=True)
class Law:
    """Hold a fitted law: y = offset + scale (size / middle)^power.

    bends: whether a size lies further from the law than its seeds allow: no sentence is made from it. r2: share of the
    variance of log y that the law explains. noise: standard deviation of log y over seeds. degrees: degrees of
    freedom."""

    offset: float
    scale: float
    power: float
    middle: float
    bends: bool
    r2: float
    noise: float
    degrees: int
    seeds: int
    _covariance: tuple[tuple[float, ...], ...]  # of log scale, power and, with an offset, the offset; over noise^2

    @property
    def numbers(self) -> int:
        """Return how many numbers were fitted: three, or two without an offset."""
        return 3 if self.offset else 2

    def at(self, size: float) -> float:
        """Return the law's value for a size."""
        return self.offset + self.scale * (size / self.middle) ** self.power

    def forecast(self, size: float) -> Estimate:
        """Return the value for a size, with the interval for the mean over the seeds."""
        slope = _slopes(np.array([size / self.middle]), self.offset, self.scale, self.power)[0, : len(self._covariance)]
        variance = 1 / self.seeds + float(slope @ np.array(self._covariance) @ slope)
        reach = t_quantile((1 + CONFIDENCE) / 2, self.degrees) * self.noise * math.sqrt(variance)
        value = self.at(size)
        return Estimate(value, value * math.exp(-reach), value * math.exp(reach), self.seeds)


def fit_law(sizes: Sequence[float], values: Sequence[Sequence[float]]) -> Law:
    """Fit the law to values [sizes, seeds], all finite and > 0. Raises ValueError for fewer than three different sizes
    or two seeds."""
    if len({*sizes}) < SIZES or len(values[0]) < 2:
        raise ValueError(f"a law needs {SIZES} sizes and 2 seeds, got {len({*sizes})} and {len(values[0])}")
    smallest = min(map(min, values))
    return min((_fitted(sizes, values, share * smallest) for share in STARTS), key=lambda law: law.noise)


def mean_of(values: Sequence[float]) -> Estimate:
    """Return the geometric mean of the values of seeds, with its interval by Student's t; infinite of one value."""
    logs = [math.log(value) for value in values]
    middle = fmean(logs)
    if len(logs) == 1:
        return Estimate(values[0], 0.0, math.inf, 1)
    reach = t_quantile((1 + CONFIDENCE) / 2, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return Estimate(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach), len(logs))


def _fitted(sizes: Sequence[float], values: Sequence[Sequence[float]], offset: float) -> Law:
    """Fit a law without an offset, or with one from this offset on, by the iteration of Gauss and Newton."""
    middle = math.exp(fmean(map(math.log, sizes)))
    x, y = np.asarray(sizes, float) / middle, np.log(np.asarray(values, float))
    seeds, means = y.shape[1], y.mean(1)
    power, log_scale = np.polyfit(np.log(x), np.log(np.exp(means) - offset), 1)
    numbers = np.array([log_scale, power, offset])

    def residuals(numbers: np.ndarray) -> np.ndarray:
        return means - np.log(numbers[2] + np.exp(numbers[0]) * x ** numbers[1])

    missed = float(np.sum(residuals(numbers) ** 2))
    for _ in range(ROUNDS if offset else 0):
        slopes = _slopes(x, numbers[2], math.exp(numbers[0]), numbers[1])
        move = np.linalg.lstsq(slopes, residuals(numbers), rcond=None)[0]
        for halvings in range(HALVINGS):
            tried = numbers + move / 2**halvings
            tried[2] = max(tried[2], 0.0)
            if (
                abs(tried[1]) <= STEEPEST
                and abs(tried[0]) <= LARGEST
                and (now := float(np.sum(residuals(tried) ** 2))) < missed
            ):
                break
        else:
            break
        numbers, before, missed = tried, missed, now
        if before - missed < ENOUGH * missed:
            break
    slopes = _slopes(x, numbers[2], math.exp(numbers[0]), numbers[1])
    inverse = np.linalg.pinv(slopes.T @ slopes)
    left, within = residuals(numbers), y - means[:, None]
    degrees = y.size - len(numbers)
    noise = math.sqrt((np.sum(within**2) + seeds * np.sum(left**2)) / degrees)
    return Law(
        offset=float(numbers[2]),
        scale=math.exp(numbers[0]),
        power=float(numbers[1]),
        middle=middle,
        bends=_bends(left, slopes[:, : 3 if numbers[2] > 0 else 2], within),
        r2=1 - float(np.sum(left**2) / max(np.sum((means - means.mean()) ** 2), 1e-300)),
        noise=noise,
        degrees=degrees,
        seeds=seeds,
        _covariance=tuple(tuple(map(float, row)) for row in inverse / seeds),
    )


def _slopes(x: np.ndarray, offset: float, scale: float, power: float) -> np.ndarray:
    """Return the derivatives [sizes, 3] of log y by log scale, power and offset."""
    above = scale * x**power
    return np.stack([above, above * np.log(x), np.ones_like(x)], axis=1) / (offset + above)[:, None]


def _bends(left: np.ndarray, slopes: np.ndarray, within: np.ndarray) -> bool:
    """Return whether the mean of a size lies further from the law than its seeds allow, by Student's t with the noise
    within sizes, for the farthest of all (Bonferroni)."""
    sizes, seeds = within.shape
    degrees = within.size - sizes
    noise = math.sqrt(np.sum(within**2) / degrees / seeds)
    free = np.sqrt(np.maximum(1 - np.diag(slopes @ np.linalg.pinv(slopes)), 1e-12))
    return bool(np.any(np.abs(left) > t_quantile(1 - BENT / 2 / sizes, degrees) * noise * free + 1e-12))
