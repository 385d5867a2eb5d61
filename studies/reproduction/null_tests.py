"""Find the null tests of a paper: an algorithm of a study that was tuned and measured once more, under another name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from dsgd.report.contest import Contender
from dsgd.report.interval import Estimate
from studies.reproduction.fair import Null, null_gain, null_loss, null_samples, null_time
from studies.reproduction.logged import Logged
from studies.reproduction.protocol import null_difference, null_factor

PREFIX = "null_"  # of the studies that have the second name
DECIDING = ("nodes", "batch_size", "precision", "algo", "topology", "model", "data")
DECIDING += ("optimizer", "schedule", "cluster", "budget", "target")


@dataclass(frozen=True)
class NullTest:
    """One algorithm under two names. study: of the second name, contender. measure: what is compared. value: ratio of
    the first to the second, or their difference. spread: how far its interval reaches away from 1, as a factor, or from
    0."""

    study: str
    contender: str
    measure: str
    value: Estimate
    spread: float


def null_tests(logged: Mapping[str, Logged]) -> Iterator[NullTest]:
    """Yield the null tests among the studies of a paper; none of a name whose first was not run."""
    firsts = [first for name, study in logged.items() if not name.startswith(PREFIX) for first in study.contenders]
    for name, study in logged.items():
        for second in study.contenders if name.startswith(PREFIX) else ():
            first = next((candidate for candidate in firsts if _are_one(candidate, second)), None)
            if first is None:
                continue
            null = Null(first, second)
            if second.runs[0].target is not None:
                time = null_time(null)
                yield NullTest(name, second.name, "time to the target, ratio", time, null_factor(time))
                samples = null_samples(null)
                yield NullTest(name, second.name, "samples to the target, ratio", samples, null_factor(samples))
                continue
            loss, gain = null_loss(null), null_gain(null)
            yield NullTest(name, second.name, "test loss at the end, ratio", loss, null_factor(loss))
            yield NullTest(name, second.name, "test accuracy at the end, difference", gain, null_difference(gain))


def _are_one(first: Contender, second: Contender) -> bool:
    """Check that two names are one algorithm on one task: all that decides a result is equal, but for seed and tuned
    values. A key that one of them lacks came later."""
    tuned = {*first.chosen, *second.chosen}
    values, others = ({key: side.runs[0].config.get(key) for key in DECIDING} for side in (first, second))
    return _agree(values, others, tuned)


def _agree(value: Any, other: Any, tuned: Set[str], key: str = "") -> bool:
    """Check that two values of a dotted key are equal, or tuned; of mappings, in the keys that both have."""
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        both = value.keys() & other.keys()
        return all(_agree(value[name], other[name], tuned, f"{key}.{name}".lstrip(".")) for name in both)
    return key in tuned or value == other
