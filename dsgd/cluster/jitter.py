"""Describe how gradient times vary: `cluster.jitter` and the keys that begin with it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsgd.cluster.disturbances import LONGEST_S

LEAST_JITTER = 1e-3  # what is less, or more than its inverse, is beyond what random numbers of 64 bits resolve
DISTRIBUTIONS = ("gamma", "lognormal", "normal")
MOST_NORMAL_JITTER = 1 / 3  # zero is three deviations from the mean: what is cut off there hardly shows
MOST_SKEW = 1e3


@dataclass(frozen=True)
class JitterLaw:
    """The law of the factors, with mean 1, on a node's gradient times.

    cv: standard deviation of the factors of one node over their mean. distribution: one of DISTRIBUTIONS. skew: third
    standardised moment of a log-normal that is shifted and scaled to it; None: the distribution's own. persistent:
    standard deviation, over the mean, of one more factor that a node draws once and keeps, a log-normal. memory_s:
    seconds after which the correlation of a node's factors, on the scale of the normal that the log-normal is made of,
    has fallen to 1 / e; 0: they are independent.
    """

    cv: float
    distribution: str = "gamma"
    skew: float | None = None
    persistent: float = 0.0
    memory_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("jitter", self.cv), ("jitter_persistent", self.persistent)):
            if value != 0 and not LEAST_JITTER <= value <= 1 / LEAST_JITTER:
                raise ValueError(f"{name} must be 0 or in [{LEAST_JITTER:g}, {1 / LEAST_JITTER:g}], got {value}")
        if self.distribution not in DISTRIBUTIONS:
            known = ", ".join(DISTRIBUTIONS)
            raise ValueError(f"jitter_distribution must be one of {known}, got {self.distribution!r}")
        if self.distribution == "normal" and self.cv > MOST_NORMAL_JITTER:
            raise ValueError(f"jitter must be <= 1/3 with jitter_distribution=normal, got {self.cv}")
        if not 0 <= self.memory_s <= LONGEST_S:
            raise ValueError(f"jitter_memory_s must be in [0, {LONGEST_S:g}], got {self.memory_s}")
        for name, value, usual in (("skew", self.skew, "null"), ("memory_s", self.memory_s or None, "0")):
            if value is not None and (self.cv == 0 or self.distribution != "lognormal"):
                rule = f"jitter_{name} must be {usual} without jitter and jitter_distribution=lognormal"
                raise ValueError(f"{rule}, got {value:g}")
        least = self.cv**3 + 3 * self.cv
        if self.skew is not None and not least <= self.skew <= MOST_SKEW:  # with less, times below 0 would be drawn
            rule = f"jitter_skew must be in [{least:.4g}, {MOST_SKEW:g}] (jitter^3 + 3 jitter: a log-normal's own)"
            raise ValueError(f"{rule}, got {self.skew:g}")

    @property
    def base_cv(self) -> float:
        """Return the standard deviation, over the mean, of the log-normal that is shifted and scaled: v with
        v^3 + 3 v = skew."""
        return self.cv if self.skew is None else 2 * math.sinh(math.asinh(self.skew / 2) / 3)
