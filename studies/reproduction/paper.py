"""Describe a paper: the runs that test it, its claims with the thresholds that were fixed before, and its figures."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from studies.evidence.contrast import Need
from studies.reproduction.criterion import Statement
from studies.reproduction.logged import Logged
from studies.reproduction.verdict import Finding

STATUSES = ("published", "unconfirmed", "ours")

Evidence = Mapping[str, Logged]  # what was logged of each study, by its name


@dataclass(frozen=True)
class Study:
    """The runs of one command line.

    name: unlike those of the paper's other studies. by: a program that makes its runs instead of dsgd-run -m, which
    dsgd-reproduce leaves to its user."""

    name: str
    overrides: tuple[str, ...]
    by: str | None = None

    @property
    def command(self) -> str:
        """Return what a user would type for these runs."""
        return " ".join([self.by or "dsgd-run -m", *map(_quoted, self.overrides)])

    def numbers(self, key: str) -> tuple[Any, ...]:
        """Return the numbers that a key has in these runs: integers where the command line has them."""
        values = [override.removeprefix(f"{key}=") for override in self.overrides if override.startswith(f"{key}=")]
        return tuple(map(json.loads, values[-1].split(",")))


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

    tasks: on each of these it is judged by pipelines, which the judge gets with the task; none: by the studies of the
    statement. needs: the pipelines that it is judged by, the most important first."""

    statement: Statement
    judge: Callable[..., Finding]
    tasks: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()

    @property
    def id(self) -> str:
        """Return its short name, like J1."""
        return self.statement.id

    @property
    def studies(self) -> tuple[str, ...]:
        """Return the studies by whose runs it is judged; none: by pipelines, or numbers that need no run."""
        return self.statement.studies


@dataclass(frozen=True)
class Chart:
    """A figure. name: of its file. caption: what one sees. studies: whose runs it shows; none: pipelines. draw: returns
    None where pipelines are too few. needs: the pipelines that it shows."""

    name: str
    caption: str
    studies: tuple[str, ...]
    draw: Callable[..., Figure | None]
    needs: tuple[Need, ...] = ()


@dataclass(frozen=True)
class Paper:
    """A paper.

    key: name of its file and its page. summary: what it is about, and what of it can be shown here."""

    key: str
    title: str
    reference: str
    summary: str
    assumptions: tuple[Assumption, ...] = ()
    studies: tuple[Study, ...] = ()
    claims: tuple[Claim, ...] = ()
    charts: tuple[Chart, ...] = ()

    def __post_init__(self) -> None:
        names = [study.name for study in self.studies]
        if len({*names}) < len(names):
            raise ValueError(f"{self.key}: studies must have names that differ, got {', '.join(names)}")
        for user in (*self.claims, *self.charts):
            if unknown := {*user.studies} - {*names}:
                raise ValueError(f"{self.key}: {user} names studies that there are not: {', '.join(unknown)}")

    def studies_of(self, claims: tuple[str, ...] = ()) -> list[Study]:
        """Return the studies that these claims need, by their ids; all studies without any."""
        needed = {name for claim in self.claims if claim.id in claims for name in claim.studies}
        return [study for study in self.studies if not claims or study.name in needed]

    def needs_of(self, claims: tuple[str, ...] = ()) -> list[Need]:
        """Return the pipelines that these claims need; without any those of all claims and figures."""
        needed = [need for claim in self.claims if not claims or claim.id in claims for need in claim.needs]
        return needed + [need for chart in self.charts if not claims for need in chart.needs]


def _quoted(word: str) -> str:
    """Quote a word for a shell where it needs that, the value alone."""
    key, equals, value = word.partition("=")
    return f"{key}{equals}{shlex.quote(value)}" if equals else shlex.quote(word)
