"""What was logged of a study: its runs, to be found by their settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsgd.record.reader import Run

GROUPS = ("algo", "topology", "model", "data", "optimizer")


@dataclass(frozen=True)
class Logged:
    """The runs of a study, in the order of the command line."""

    runs: tuple[Run, ...]

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

    def values(self, key: str) -> list[Any]:
        """Return the values of a dotted key in these runs, each once, in order."""
        return list(dict.fromkeys(_setting(run, key.replace(".", "__")) for run in self.runs))


def throughput(run: Run) -> float:
    """Return the throughput of a run."""
    return run.final("samples") / run.final("time_s")


def time_of_step(run: Run) -> float:
    """Return the seconds of a step."""
    return run.final("time_s") / run.final("steps")


def time_of_sample(run: Run) -> float:
    """Return the seconds of a sample of all workers."""
    return run.final("time_s") / run.final("samples")


def _setting(run: Run, key: str) -> Any:
    return run.chosen(key) if key in GROUPS else run.setting(key.replace("__", "."))
