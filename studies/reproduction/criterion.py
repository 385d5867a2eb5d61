"""Read the thresholds of claims from a file, so that each stands in one place.

A criterion is one line, whose numbers may be percentages (`5 %`) or points of accuracy (`0.5 points`):

    at_least 1.10, at_most 0.99   so is the whole interval
    above 1, below 1              the same, strictly
    from 16 to 64                 the whole interval lies between
    no_worse_by 0.5 points        a gain is at least -0.005
    within 15 % of 10             a number differs from 10 by 15 % at most; `within 15 %`: from what the judge expects
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from dsgd.report.interval import Estimate
from studies.reproduction.verdict import Check, Finding, above, at_least, at_most, below, close, judged, within

NUMBER = r"-?[0-9.]+(?:e-?[0-9]+)?"
FORM = re.compile(rf"(?P<kind>[a-z_]+) (?P<first>{NUMBER}(?: %| points)?)(?: (?P<link>to|of) (?P<second>{NUMBER}))?")
ONE_NUMBER = {"at_least": at_least, "at_most": at_most, "above": above, "below": below, "no_worse_by": at_least}
# each kind of criterion with the links before its second number
LINKS = {**dict.fromkeys(ONE_NUMBER, (None,)), "from": ("to",), "within": ("of", None)}
FIELDS = {"kind", "claim", "source", "passes", "criteria"}
CONDITIONS = {"published", "there", "here", "threshold_of"}
OPTIONAL = {"need", "studies", "reason"}
QUOTED_OR_READ = r'(?:"[^"]+" \([^"]+\)|our reading of [^"]+?: [^"]+)'
PUBLISHED = re.compile(rf"{QUOTED_OR_READ}(?:; {QUOTED_OR_READ})*|ours: .+")
OWNER = re.compile(r"the paper's(?:; ours: .+)?|ours: .+")


class ClaimKind(StrEnum):
    """What a claim is about.

    EXACT: a closed form or an invariant, which holds by construction and is tested. TIME: times that need no training.
    LEARNING: what trained models come to, which needs the protocol of docs/explanation/papers.md."""

    EXACT = "exact"
    TIME = "time"
    LEARNING = "learning"


@dataclass(frozen=True)
class Criterion:
    """One threshold. kind: a key of LINKS. first, second: its numbers as they are written; second: None without one."""

    kind: str
    first: str
    second: str | None

    @staticmethod
    def parse(text: str) -> Criterion:
        """Read a criterion. Raises ValueError for a line that is none."""
        match = FORM.fullmatch(text)
        if match is None or match["link"] not in LINKS.get(match["kind"], ()):
            raise ValueError(f"a criterion must be one of {', '.join(LINKS)} with its numbers, got {text!r}")
        return Criterion(match["kind"], match["first"], match["second"])

    @property
    def threshold(self) -> float:
        """Return the first number."""
        value, _, unit = self.first.partition(" ")
        return float(value) / (100 if unit else 1)

    @property
    def bound(self) -> float:
        """Return the number that decides, of a criterion with one number."""
        return -self.threshold if self.kind == "no_worse_by" else self.threshold

    @property
    def other(self) -> float | None:
        """Return the second number."""
        return None if self.second is None else float(self.second)

    def check(self, what: str, value: Estimate | float, expected: float | None = None) -> Check:
        """Hold a measurement against the threshold. expected: of `within` without its `of`.

        Raises ValueError where the kind does not go with the measurement."""
        if self.kind in ONE_NUMBER:
            return ONE_NUMBER[self.kind](what, value, self.bound)
        if self.kind == "from" and self.other is not None:
            return within(what, value, self.threshold, self.other)
        target = self.other if expected is None else expected
        if isinstance(value, Estimate) or target is None:
            raise ValueError(f"{what}: `within` must have a number without an interval, and one that is expected")
        relative = self.first.endswith("%")
        return close(what, value, target, **{"relative" if relative else "absolute": self.threshold})


@dataclass(frozen=True)
class Conditions:
    """Under which conditions a claim was made and is tested, and whose the threshold is.

    published: the sentence of the paper, quoted with its section, or our reading of a section. there: the paper's
    model, data, workers and network, as far as known. here: task, network and length of training. threshold_of: the
    paper, or we, with a reason."""

    published: str
    there: str
    here: str
    threshold_of: str

    def __post_init__(self) -> None:
        if not PUBLISHED.fullmatch(self.published):
            raise ValueError(
                f"published must be '\"…\" (section)', our reading of … or ours: …, got {self.published!r}"
            )
        if not OWNER.fullmatch(self.threshold_of):
            raise ValueError(f"threshold_of must be the paper's, or ours: and a reason, got {self.threshold_of!r}")


@dataclass(frozen=True)
class Statement:
    """What a paper claims, with the thresholds by which the claim passes.

    text: the claim. source: who makes it. passes: the condition, with the numbers of the criteria. need: how many
    checks must pass; None: all. conditions: None: it is an exact property. studies: by whose runs it is judged.
    reason: limits of the result, with numbers of the judge between braces."""

    id: str
    kind: ClaimKind
    text: str
    source: str
    passes: str
    criteria: Mapping[str, Criterion]
    need: int | None = None
    conditions: Conditions | None = None
    studies: tuple[str, ...] = ()
    reason: str = ""

    def threshold(self, name: str) -> float:
        """Return the first number of a criterion."""
        return self.criteria[name].threshold

    def check(self, name: str, what: str, value: Estimate | float, expected: float | None = None) -> Check:
        """Hold a measurement against a criterion."""
        return self.criteria[name].check(what, value, expected)

    def judged(self, checks: Sequence[Check], explained_by: Sequence[Check] = (), **numbers: Any) -> Finding:
        """Return the finding by these checks, of which as many must pass as the statement says. numbers: of reason."""
        return judged(checks, self.reason.format(**numbers), self.need, explained_by)


def read_statements(path: Path) -> dict[str, Statement]:
    """Read all statements of a file, by their ids. Raises ValueError for one that is incomplete."""
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {id: _statement(id, entry) for id, entry in entries.items()}


def _statement(id: str, entry: Mapping[str, Any]) -> Statement:
    exact = entry.get("kind") == ClaimKind.EXACT and not CONDITIONS & entry.keys()
    needed = FIELDS if exact else FIELDS | CONDITIONS
    if not needed <= entry.keys() <= needed | OPTIONAL:
        raise ValueError(f"{id} must have {', '.join(sorted(needed | OPTIONAL))}, got {', '.join(entry)}")
    conditions = None if exact else Conditions(**{name: str(entry[name]) for name in CONDITIONS})
    criteria = {name: Criterion.parse(str(text)) for name, text in entry["criteria"].items()}
    written = {name: criterion.first for name, criterion in criteria.items()}
    written |= {f"{name}_to": criterion.second for name, criterion in criteria.items() if criterion.second is not None}
    passes = entry["passes"].format_map(written)
    head = (id, ClaimKind(entry["kind"]), entry["claim"], entry["source"], passes, criteria, entry.get("need"))
    return Statement(*head, conditions, tuple(entry.get("studies", ())), entry.get("reason", ""))
