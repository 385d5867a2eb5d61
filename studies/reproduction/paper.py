"""Describe a paper: the runs that test it, its claims with the thresholds that were fixed before, and its figures."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from studies.evidence.race import Pipelines
from studies.reproduction.criterion import Statement
from studies.reproduction.verdict import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from studies.reproduction.logged import Logged

SMALL, REAL, FULL = "small", "real", "full"
SCALES = (SMALL, REAL, FULL)
STATUSES = ("published", "unconfirmed", "ours")

Evidence = Mapping[str, "Logged"]  # what was logged of each study, by its name


@dataclass(frozen=True)
class Study:
    """The runs of one command line.

    name: unlike those of the paper's other studies. overrides: at every scale; small, real, full: those of
    one scale, before them; None: it does not exist at that scale. tuned: made by dsgd-compare, else by dsgd-run -m. by:
    a program that makes its runs instead, which dsgd-reproduce leaves to its user."""

    name: str
    overrides: tuple[str, ...]
    small: tuple[str, ...] | None = ()
    full: tuple[str, ...] | None = None
    tuned: bool = False
    by: str | None = None
    real: tuple[str, ...] | None = None

    def at(self, scale: str) -> tuple[str, ...] | None:
        """Return the overrides at a scale; None if the study does not exist there."""
        of_scale = {SMALL: self.small, REAL: self.real, FULL: self.full}[scale]
        return None if of_scale is None else (*of_scale, *self.overrides)

    def command(self, scale: str) -> str:
        """Return what a user would type for these runs."""
        program = self.by or ("dsgd-compare" if self.tuned else "dsgd-run -m")
        return " ".join([program, *map(_quoted, self.at(scale) or ())])


def newer_small(name: str, *overrides: str) -> Study:
    """Return a study by dsgd-compare with the settings of conf/experiment/newer_small.yaml."""
    return Study(name, overrides, ("experiment=newer_small",), tuned=True)


@dataclass(frozen=True)
class Assumption:
    """A setting of the paper as it is used here. status: one of STATUSES, whether the paper has it."""

    what: str
    value: str
    status: str

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {self.status!r}")


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, and how it is judged here.

    studies: by whose runs it is judged; none: by numbers that need no run. tasks: on each of these it is judged by the
    study of that name and task, `race_shapes`, which the judge finds as `race`; without studies by pipelines, which the
    judge gets with the task; none: by the studies as they are."""

    statement: Statement
    studies: tuple[str, ...]
    judge: Callable[..., Finding]
    tasks: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Return its short name, like J1."""
        return self.statement.id

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the names of all studies by whose runs it is judged."""
        return tuple(of_task(name, task) for task in self.tasks for name in self.studies) or self.studies


@dataclass(frozen=True)
class Chart:
    """A figure. name: of its file. caption: what one sees. studies: whose runs it shows; none: pipelines. more: studies
    whose runs it shows as well, once they are run. draw: returns None where pipelines are too few."""

    name: str
    caption: str
    studies: tuple[str, ...]
    draw: Callable[..., Figure | None]
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Paper:
    """A paper. key: name of its file and its pages, at the real scale with `_real`. order: of its page among the
    others. summary: what it is about, and what of it can be shown here, in a few sentences. needs: programs over the
    archive of pipelines that raise Missing, the most important first."""

    key: str
    order: int
    title: str
    reference: str
    summary: str
    assumptions: tuple[Assumption, ...]
    studies: tuple[Study, ...]
    claims: tuple[Claim, ...]
    charts: tuple[Chart, ...] = ()
    needs: tuple[Callable[[Pipelines], object], ...] = ()

    @property
    def name(self) -> str:
        """Return the key as a user types it, at every scale."""
        return self.key.removesuffix(f"_{REAL}")

    def __post_init__(self) -> None:
        names = [study.name for study in self.studies]
        if len({*names}) < len(names):
            raise ValueError(f"{self.key}: studies must have names that differ, got {', '.join(names)}")
        for user in (*self.claims, *self.charts):
            needed = user.needs if isinstance(user, Claim) else (*user.studies, *user.more)
            if unknown := {*needed} - {*names}:
                raise ValueError(f"{self.key}: {user} names studies that there are not: {', '.join(unknown)}")

    def studies_of(self, claims: tuple[str, ...] = ()) -> list[Study]:
        """Return the studies that these claims need, by their ids; all studies without any."""
        needed = {name for claim in self.claims if claim.id in claims for name in claim.needs}
        return [study for study in self.studies if not claims or study.name in needed]


def of_task(study: str, task: str) -> str:
    """Return the name of a study on one task."""
    return f"{study}_{task}"


def listed(values: Sequence[float]) -> str:
    """Return the values of a key as a command line has them, `1,2,4`."""
    return ",".join(f"{value:.12g}" for value in values)


def named(contenders: Sequence[Mapping[str, object]]) -> str:
    """Return contenders as `compare.contenders` has them."""
    return ", ".join(
        "{" + ", ".join(f"{key}: {value}" for key, value in options.items()) + "}" for options in contenders
    )


def _quoted(word: str) -> str:
    """Quote a word for a shell where it needs that, the value alone."""
    key, equals, value = word.partition("=")
    return f"{key}{equals}{shlex.quote(value)}" if equals else shlex.quote(word)
