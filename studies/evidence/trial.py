"""One training run of a pipeline, and the archive of all: a line of CSV each, which a spreadsheet reads."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from dsgd.record.safe_files import write_atomically

BASE_RATE = 0.1  # the rate of level 0
PER_OCTAVE = 2  # levels of rates in a factor of 2
TUNE, MEASURE = "tune", "measure"
Asked = TypeVar("Asked")
Made = TypeVar("Made")


def rate_of(level: int) -> float:
    """Return the learning rate of a level."""
    return BASE_RATE * 2 ** (level / PER_OCTAVE)


@dataclass(frozen=True, order=True)
class Trial:
    """One run: a contender on one task with one rate and one number of steps.

    contender: an algorithm with its options, `gossip mode=pull tau=10`. stage: TUNE, evaluated on samples held out of
    training, or MEASURE, on test samples. replicate: of the pipeline, which decides the seed. steps: of each worker.
    level: level of the rate, in factors of sqrt 2."""

    task: str
    contender: str
    nodes: int
    stage: str
    replicate: int
    steps: int
    level: int

    @property
    def rate(self) -> float:
        """Return the learning rate."""
        return rate_of(self.level)

    @property
    def seed(self) -> int:
        """Return the seed, the same for all contenders: tuning and measuring have no seed in common."""
        return self.replicate + (1000 if self.stage == TUNE else 0)


@dataclass(frozen=True)
class TrialOutcome:
    """What a trial came to: the loss and accuracy of the mean model at its end; infinite and 0 where it diverged.

    parts: the loss on each tenth of the test samples, of a measured trial; else none. commit: of the program that made
    it. accuracies: on each tenth. apart: the median distance of two workers; infinite where it diverged. Both were not
    noted by the first programs: none."""

    loss: float
    accuracy: float
    parts: tuple[float, ...]
    commit: str
    accuracies: tuple[float, ...] = ()
    apart: float | None = None


@dataclass(frozen=True, order=True)
class Clock:
    """The seconds of a step of each worker, which need no training.

    overlap: whether all-reduce hides behind the backward pass; False of contenders without one. jitter: relative
    standard deviation of the gradient time."""

    contender: str
    nodes: int
    overlap: bool
    jitter: float
    replicate: int


class OnDemand(dict[Asked, Made]):
    """A dictionary that lacks no key: it makes a value when it is first asked for."""

    def __init__(self, make: Callable[[Asked], Made], known: Mapping[Asked, Made] = MappingProxyType({})) -> None:
        super().__init__(known)
        self._make = make

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: Asked) -> Made:
        return self.setdefault(key, self._make(key))


Outcomes = Mapping[Trial, TrialOutcome]
TRIALS, CLOCKS = "trials.csv", "clocks.csv"
_TRIAL = [field.name for field in fields(Trial)]
_OUTCOME = [field.name for field in fields(TrialOutcome)]


def read_archive(results: Path) -> tuple[dict[Trial, TrialOutcome], dict[Clock, float]]:
    """Read the trials and the seconds of steps of a folder. Raises ValueError for a file that has others."""
    return read_trials(results / TRIALS), read_clocks(results / CLOCKS)


def write_archive(results: Path, outcomes: Outcomes, seconds: Mapping[Clock, float]) -> None:
    """Write the trials and the seconds of steps into a folder, each file in one step."""
    write_trials(results / TRIALS, outcomes)
    write_clocks(results / CLOCKS, seconds)


def read_trials(path: Path) -> dict[Trial, TrialOutcome]:
    """Read an archive of trials; empty if there is none. Raises ValueError for a file that is no archive."""
    outcomes = {}
    for number, row in _rows(path, ["rate", "seed", *_TRIAL, *_OUTCOME]):
        try:
            numbers = {name: int(row[name]) for name in ("nodes", "replicate", "steps", "level")}
            trial = Trial(row["task"], row["contender"], stage=row["stage"], **numbers)
            parts, accuracies = (tuple(map(float, row[name].split())) for name in ("parts", "accuracies"))
            apart = float(row["apart"]) if row["apart"] else None
            loss, accuracy = float(row["loss"]), float(row["accuracy"])
            outcomes[trial] = TrialOutcome(loss, accuracy, parts, row["commit"], accuracies, apart)
        except ValueError as error:
            raise ValueError(f"{path}:{number} must be a trial, got: {error}") from error
    return outcomes


def write_trials(path: Path, outcomes: Outcomes) -> None:
    """Write an archive of trials, in the order of their fields, in one step."""
    rows = []
    for trial in sorted(outcomes):
        numbers = {"rate": f"{trial.rate:.6g}", "seed": trial.seed}
        outcome = outcomes[trial]
        lists = {name: " ".join(map(str, getattr(outcome, name))) for name in ("parts", "accuracies")}
        rows.append(asdict(trial) | numbers | asdict(outcome) | lists)
    _write(path, [*_TRIAL, "rate", "seed", *_OUTCOME], rows)


def read_clocks(path: Path) -> dict[Clock, float]:
    """Read the seconds of steps; empty if there are none. Raises ValueError for a file that has no such rows."""
    seconds = {}
    for number, row in _rows(path, ["contender", "nodes", "overlap", "jitter", "replicate", "step_s"]):
        try:
            overlap = {"true": True, "false": False}[row["overlap"]]
            clock = Clock(row["contender"], int(row["nodes"]), overlap, float(row["jitter"]), int(row["replicate"]))
            seconds[clock] = float(row["step_s"])
        except (ValueError, KeyError) as error:
            raise ValueError(f"{path}:{number} must be the seconds of a step, got: {error}") from error
    return seconds


def write_clocks(path: Path, seconds: Mapping[Clock, float]) -> None:
    """Write the seconds of steps, in the order of their fields, in one step."""
    rows = [
        asdict(clock) | {"overlap": str(clock.overlap).lower(), "step_s": f"{seconds[clock]:.7g}"}
        for clock in sorted(seconds)
    ]
    _write(path, ["contender", "nodes", "overlap", "jitter", "replicate", "step_s"], rows)


def _rows(path: Path, columns: Iterable[str]) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a file, each with its line. Raises ValueError where columns are missing."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    for number, row in enumerate(rows, 2):
        if missing := [name for name in columns if row.get(name) is None]:
            raise ValueError(f"{path}:{number} must have {', '.join(missing)}, got a shorter line")
    return list(enumerate(rows, 2))


def _write(path: Path, columns: list[str], rows: Iterable[Mapping[str, object]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue().encode())
