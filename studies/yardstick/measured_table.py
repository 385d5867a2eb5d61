"""Read the tables of times that others measured, each row with the run of the simulator that predicts it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from studies.reproduction.grouped_rows import flat_rows

TABLES = Path(__file__).with_name("tables.yaml")
# what every row is run with: nothing but time, of any problem
TIMING = ("experiment=quadratic", "engine.gradients=none", "eval.every_steps=null")
EXPLAINED = 0.25  # a larger error owes a reason
GRID = [10 ** (8 + 4 * k / 49) for k in range(51)]  # bandwidths that others simulated, in bit/s


@dataclass(frozen=True)
class Constant:
    """A number that the source of a table does not have. rows: on which it was fitted, in words."""

    name: str
    value: str
    rows: str
    why: str


@dataclass(frozen=True)
class MeasuredRow:
    """One measurement.

    overrides: the run that predicts it, beside TIMING. reads: `time`, `rate` or `computing`, what of the run predicts
    it, times `scale` and divided by `per`; `needed`, the first Gbit/s of GRID that lets a `share` of the time compute.
    reason: the reason for an error above EXPLAINED."""

    name: str
    measured: float
    overrides: tuple[str, ...]
    reads: str
    scale: float = 1
    per: float = 1
    share: float = 1
    reason: str = ""

    @property
    def command(self) -> str:
        """Return what a user would type for the run."""
        return shlex.join(["dsgd-run", *TIMING, *self.overrides])

    def predicted(self, summary: Mapping[str, Any]) -> float:
        """Return what the row measures, of the summary of its run."""
        time_s, idle = summary["time_s"], summary["idle_fraction_mean"]
        return self.scale * {"time": time_s, "rate": 1 / time_s, "computing": 1 - idle}[self.reads] / self.per


@dataclass(frozen=True)
class MeasuredTable:
    """A published table. unit: of its measurements. given: what was taken from the source, and is no row therefore.
    left_out: rows of the source that are none here, and why. fitted: by the names of constants. apart: why no row of it
    counts, of a source that refutes itself; empty: all do."""

    key: str
    title: str
    source: str
    unit: str
    given: str
    rows: Sequence[MeasuredRow]
    fitted: Sequence[Constant] = ()
    left_out: str = ""
    apart: str = ""

    @property
    def kind(self) -> str:
        """Return `apart`, `simulated` if others simulated it, so that steps of their grid judge it, or `measured`."""
        return "apart" if self.apart else "simulated" if self.rows[0].reads == "needed" else "measured"


def tables() -> list[MeasuredTable]:
    """Return all tables, in the order of the page."""
    names = {field.name for field in fields(MeasuredTable)}
    read = []
    for key, entry in yaml.safe_load(TABLES.read_text(encoding="utf-8")).items():
        head = {name: value for name, value in entry.items() if name in names}
        fitted = tuple(Constant(*each) for each in entry.get("fitted", ()))
        read.append(MeasuredTable(key, **head | {"rows": tuple(map(_row, flat_rows(entry))), "fitted": fitted}))
    return read


def _row(fields_of_row: Mapping[str, Any]) -> MeasuredRow:
    command = tuple(shlex.split(fields_of_row["command"]))
    names = [field.name for field in fields(MeasuredRow)]
    return MeasuredRow(overrides=command, **{name: fields_of_row[name] for name in names if name in fields_of_row})


def error(measured: float, predicted: float) -> float:
    """Return the relative error of a prediction."""
    return predicted / measured - 1


def grid_steps(measured: float, predicted: float) -> int:
    """Return how many steps of GRID a predicted bandwidth is above a published one."""
    return round(49 / 4 * math.log10(predicted / measured))


def percentile(errors: Sequence[float], share: float) -> float:
    """Return the smallest error that so large a share of all does not exceed, without their signs."""
    ordered = sorted(map(abs, errors))
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
