"""What was logged of a study: its runs, and who competed with which rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsgd.record.reader import Run
from dsgd.report.contest import Contender

GROUPS = ("algo", "topology", "model", "data", "optimizer")


@dataclass(frozen=True)
class Elsewhere:
    """The contenders of a study under other conditions, with the values that were chosen. conditions: key, value."""

    conditions: Mapping[str, Any]
    contenders: tuple[Contender, ...]


@dataclass(frozen=True)
class Logged:
    """The runs of a study.

    runs: those that were measured, in the order of the command line. tuning: those by which rates were chosen, without
    their curves. contenders: of a study that was tuned, with their measured runs. elsewhere: the same under each of the
    other conditions of `compare.whatif`."""

    runs: tuple[Run, ...]
    tuning: tuple[Run, ...] = ()
    contenders: tuple[Contender, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()

    def where(self, **settings: Any) -> list[Run]:
        """Return the runs with these values of settings: a group by its name, as `algo`, or a dotted key with `__` for
        its dots, as in `where(algo="gossip", nodes=8, algo__tau=10)`."""
        return [run for run in self.runs if all(_setting(run, key) == value for key, value in settings.items())]

    def run(self, **settings: Any) -> Run:
        """Return the only run with these values. Raises ValueError if there are none or several."""
        matching = self.where(**settings)
        if len(matching) != 1:
            raise ValueError(f"{settings} must have one run, got {len(matching)}")
        return matching[0]

    def contender(self, **settings: Any) -> Contender:
        """Return the only contender whose runs have these values. Raises ValueError if there are none or several."""
        matching = [
            contender
            for contender in self.contenders
            if all(_setting(contender.runs[0], key) == value for key, value in settings.items())
        ]
        if len(matching) != 1:
            raise ValueError(f"{settings} must have one contender, got {len(matching)}")
        return matching[0]

    def values(self, key: str) -> list[Any]:
        """Return the values of a dotted key in these runs, each once, in order."""
        return list(dict.fromkeys(_setting(run, key.replace(".", "__")) for run in self.runs))


def finals(runs: Sequence[Run], field: str) -> list[Any]:
    """Return a field of the summary of each run."""
    return [run.final(field) for run in runs]


def _setting(run: Run, key: str) -> Any:
    return (
        run.chosen(key)
        if key in ("algo", "topology", "model", "data", "optimizer")
        else run.setting(key.replace("__", "."))
    )
