"""A table of times that others measured, each row with the run of the simulator that predicts it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Summary = Mapping[str, Any]  # of a run, as `summary.json` has it
# what every row is run with: nothing but time, of any problem
TIMING = ("experiment=quadratic", "engine.gradients=none", "eval.every_steps=null")
EXPLAINED = 0.25  # a larger error owes a reason


@dataclass(frozen=True)
class Constant:
    """A number that the source of a table does not have. rows: on which it was fitted, in words."""

    name: str
    value: str
    rows: str
    why: str


@dataclass(frozen=True)
class MeasuredRow:
    """One measurement. overrides: the run that predicts it, beside TIMING. predicted: what the row measures, of that
    run's summary. reason: of an error above EXPLAINED."""

    name: str
    measured: float
    overrides: tuple[str, ...]
    predicted: Callable[[Summary], float]
    reason: str = ""

    @property
    def command(self) -> str:
        """Return what a user would type for the run."""
        return shlex.join(["dsgd-run", *TIMING, *self.overrides])


@dataclass(frozen=True)
class MeasuredTable:
    """A published table. unit: of its measurements. given: what was taken from the source, and is no row therefore.
    left_out: rows of the source that are none here, and why. fitted: by the names of constants."""

    key: str
    title: str
    source: str
    unit: str
    given: str
    rows: Sequence[MeasuredRow]
    fitted: Sequence[Constant] = ()
    left_out: str = ""


def error(measured: float, predicted: float) -> float:
    """Return the relative error of a prediction."""
    return predicted / measured - 1


def percentile(errors: Sequence[float], share: float) -> float:
    """Return the smallest error that so large a share of all does not exceed, without their signs."""
    ordered = sorted(map(abs, errors))
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def per_step(steps: int, factor: float = 1.0) -> Callable[[Summary], float]:
    """Return what reads the seconds of a step, times a factor."""
    return lambda summary: factor * summary["time_s"] / steps


def throughput(samples: float) -> Callable[[Summary], float]:
    """Return what reads samples a second, of so many in the whole run."""
    return lambda summary: samples / summary["time_s"]


def computing(summary: Summary) -> float:
    """Return the share of the time in which workers compute."""
    return 1 - summary["idle_fraction_mean"]
