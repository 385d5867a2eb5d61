"""Climb a ladder: compare the contenders on sizes that grow, forecast the largest before it is run, and show the miss.

Each rung is a comparison of its own, in a folder of its own: tuned, and measured on the same seeds. The rates of a rung
begin around the best ones of the rung before. The forecast is written when all rungs but the largest are measured, and
is never written again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from dsgd.cli.arguments import key_of, open_mappings
from dsgd.cli.folders import folder_lock
from dsgd.comparison.comparison_run import run_comparison
from dsgd.comparison.contenders import Contender, aim_text, counted_by, score
from dsgd.comparison.entries import literal
from dsgd.comparison.options import RATES, size_of
from dsgd.comparison.preparation import Prepared, prepare
from dsgd.comparison.scaling_law import Law, fit_law, mean_of
from dsgd.host.signals import Interruption
from dsgd.record.reader import Run
from dsgd.record.safe_files import write_atomically
from dsgd.report.fields import aim_of, time_to_target_s
from dsgd.report.interval import Estimate
from dsgd.runner.values import ConfigError

FORECAST, LADDER = "forecast.json", "ladder"
OWN, NO_LADDER = {"compare.ladder", "compare.tune"}, "compare.ladder=null"
BEYOND = 10  # times the largest size that the law is extrapolated to
DIGITS = 6
NO_LAW = "lie further from a power law than their seeds allow"


@dataclass(frozen=True)
class Rung:
    """Hold one size of a ladder. settings: {key: value}, numbers or lists of one; the first names the rung."""

    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Return `width=16`."""
        return f"{next(iter(self.settings)).rpartition('.')[2]}={self.size:g}"

    @property
    def size(self) -> float:
        """Return the size that laws depend on."""
        size = size_of(next(iter(self.settings.values())))
        assert size is not None  # CompareOptions has checked it
        return size


@dataclass(frozen=True)
class RungScores:
    """Hold the scores of one contender on every rung, or the ratios of two.

    label: name of the contender, or `sync over gossip`. by_rung: scores of the seeds, seconds or losses, infinite for a
    target that was missed; for a ratio the first contender's over the second's, paired by the seed. samples:
    samples of all workers until the target, in the same order; none without a target."""

    label: str
    by_rung: Sequence[Sequence[float]]
    samples: Sequence[Sequence[float]] = ()

    def law(self, sizes: Sequence[float]) -> Law | None:
        """Return the law of the first rungs, one for each size; None if a seed has no score there, since it missed the
        target, began beyond it, or diverged."""
        values = self.by_rung[: len(sizes)]
        return fit_law(sizes, values) if all(map(_known, values)) else None

    def mean(self, rung: int) -> Estimate:
        """Return the geometric mean over seeds on a rung; NaN if a seed has no score."""
        values = self.by_rung[rung]
        return mean_of(values) if _known(values) else Estimate(math.nan, math.nan, math.nan, len(values))


def _known(seeds: Sequence[float]) -> bool:
    return all(0 < value < math.inf for value in seeds)


@dataclass(frozen=True)
class Ladder:
    """Hold a ladder that was climbed. contenders: contenders of each rung, in the same order."""

    folder: Path
    rungs: Sequence[Rung]
    contenders: Sequence[Sequence[Contender]]

    @property
    def sizes(self) -> list[float]:
        """Return the size of each rung."""
        return [rung.size for rung in self.rungs]

    @property
    def measure(self) -> str:
        """Return the name of the score: `time to a test accuracy of 0.9`, `the loss at the end`."""
        aim = aim_of(self.contenders[-1][0].runs[0])
        return aim_text(aim) if aim is None else f"time to {aim_text(aim)}"

    @property
    def scores(self) -> list[RungScores]:
        """Return the scores of each contender."""
        return scores_of(self.contenders)

    @property
    def ratios(self) -> list[RungScores]:
        """Return the ratios of each two contenders."""
        return ratios_of(self.scores)


def rungs_of(ladder: Mapping[str, Sequence[Any]]) -> list[Rung]:
    """Return the rungs of `compare.ladder`, the smallest first."""
    return [Rung(dict(zip(ladder, sizes, strict=True))) for sizes in zip(*ladder.values(), strict=True)]


@contextmanager
def climb(overrides: Sequence[str], whole: Prepared, folder: Path, interruption: Interruption) -> Iterator[Ladder]:
    """Compare on every rung, as far as runs are missing, and write the forecast before the largest is run. The folder
    is locked until the block ends.

    overrides: the command line that was prepared as `whole`. Raises as `compare`, and ConfigError, before any run, if a
    rung cannot be compared, and if the folder's forecast is of other runs."""
    ladder, axes = whole.options.ladder or {}, RATES if whole.options.tune is None else whole.options.tune
    rungs = rungs_of(ladder)
    shared = [word for word in open_mappings(overrides) if not _is_own(key_of(word))]
    arguments = [
        [*shared, *(f"{key}={literal(size)}" for key, size in rung.settings.items()), NO_LADDER] for rung in rungs
    ]
    for with_sizes in arguments:
        prepare([*with_sizes, f"compare.tune={literal(axes)}"], whole.config_dir)
    with folder_lock(folder, "--folder"):
        whole.claim(folder)
        measured: list[Sequence[Contender]] = []
        for number, (rung, with_sizes) in enumerate(zip(rungs, arguments, strict=True), start=1):
            if rung is rungs[-1]:
                write_forecast(Ladder(folder, rungs[:-1], measured), rung)
            part, of_rung = f"rung {number} of {len(rungs)}", [*with_sizes, f"compare.tune={literal(axes)}"]
            compared = prepare(of_rung, whole.config_dir)
            with run_comparison(compared, folder / rung.name, interruption, part=part) as result:
                measured.append(result.contenders)
            axes = around_best(result.contenders, axes)
        yield Ladder(folder, rungs, measured)


def _is_own(key: str) -> bool:
    """Check that a key is one that the ladder sets on each rung, or an entry of one: `compare.tune.optimizer.lr`."""
    return ".".join(key.split(".")[:2]) in OWN


def around_best(contenders: Sequence[Contender], axes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ranges of the tuned keys for the next rung: from half the smallest of the contenders' best values to
    twice the largest."""
    ranges = {}
    for key, ends in axes.items():
        best = [contender.chosen[key] for contender in contenders if key in contender.chosen]
        whole = isinstance(ends[0], int)
        low, high = (min(best), max(best)) if best else ends
        ranges[key] = [max(1, low // 2) if whole else low / 2, 2 * high] if best else ends
    return ranges


def scores_of(contenders: Sequence[Sequence[Contender]]) -> list[RungScores]:
    """Return the scores of each contender. contenders: contenders of each rung."""
    return [
        RungScores(
            of_one[0].label,
            [[score(run) for run in contender.runs] for contender in of_one],
            [[samples_to_target(run) for run in contender.runs] for contender in of_one],
        )
        for of_one in zip(*contenders, strict=True)
    ]


def samples_to_target(run: Run) -> float:
    """Return the samples of all workers until a run reached its target, between two marks by interpolation; infinite if
    it missed it, NaN without a target."""
    if run.target is None:
        return math.nan
    seconds = time_to_target_s(run)
    return math.inf if seconds is None else counted_by(run, "samples", seconds)


def ratios_of(scores: Sequence[RungScores]) -> list[RungScores]:
    """Return the ratios of each two contenders, the one named first over the other."""
    return [
        RungScores(
            f"{first.label} over {second.label}",
            _each_ratio(first.by_rung, second.by_rung),
            _each_ratio(first.samples, second.samples),
        )
        for first, second in combinations(scores, 2)
    ]


def _each_ratio(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> list[list[float]]:
    pairs = zip(first, second, strict=True)
    return [[_ratio(a, b) for a, b in zip(left, right, strict=True)] for left, right in pairs]


def _ratio(first: float, second: float) -> float:
    return first / second if math.isfinite(first) and math.isfinite(second) and second > 0 else math.inf


def write_forecast(ladder: Ladder, largest: Rung) -> None:
    """Write the forecast for the largest rung from the others, once. Raises ConfigError if it is there, of other
    runs."""
    text = forecast_text([*ladder.scores, *ladder.ratios], [*ladder.sizes, largest.size])
    path = ladder.folder / FORECAST
    if not path.exists():
        write_atomically(path, text.encode())
    elif path.read_text() != text:
        raise ConfigError(f"--folder must be new for other runs, got {ladder.folder}, whose {FORECAST} is of others")


def forecast_text(every: Sequence[RungScores], sizes: Sequence[float]) -> str:
    """Return the content of forecast.json: the laws of scores on all sizes but the last, and what they say of it."""
    *smaller, largest = sizes
    laws = {scores.label: scores.law(smaller) for scores in every}
    content = {
        "size": largest,
        "sizes": smaller,
        "forecasts": {label: None if law is None else _numbers(law, largest) for label, law in laws.items()},
    }
    return json.dumps(content, indent=1) + "\n"


def _numbers(law: Law, size: float) -> dict[str, Any]:
    ahead = law.forecast(size)
    numbers = {"offset": law.offset, "scale": law.scale, "power": law.power, "middle": law.middle, "r2": law.r2}
    numbers |= {"forecast": ahead.median, "low": ahead.low, "high": ahead.high}
    return {name: float(f"{value:.{DIGITS}g}") for name, value in numbers.items()} | {"bends": law.bends}


def outlook(scores: RungScores, sizes: Sequence[float]) -> str:
    """Return a sentence on the ratio of two contenders: measured, forecast, and extrapolated beyond the largest; of
    times also which part is of learning, and which of the cluster."""
    return _outlook(scores, sizes) + _factors(scores)


def _factors(scores: RungScores) -> str:
    if not scores.samples or not all(map(_known, scores.samples)):
        return ""
    samples = [mean_of(seeds).median for seeds in scores.samples]
    seconds = [scores.mean(rung).median / mean for rung, mean in enumerate(samples)]
    learning, cluster = (", ".join(f"{value:.3g}" for value in values) for values in (samples, seconds))
    return f"; samples to the target {learning}, seconds a sample {cluster}"


def _outlook(scores: RungScores, sizes: Sequence[float]) -> str:
    law = scores.law(sizes[:-1])
    means = [scores.mean(rung) for rung in range(len(sizes))]
    line = f"{scores.label}: {', '.join(_shown(mean) for mean in means[:-1])}"
    largest = f"measured {_with_ends(means[-1])}"
    if law is None or law.bends:
        why = "a seed has no score" if law is None else f"these ratios {NO_LAW}"
        return f"{line}; no forecast, since {why}; {largest}"
    line += f", forecast {_with_ends(law.forecast(sizes[-1]))}, {largest}"
    whole = scores.law(sizes)
    if whole is None or whole.bends:
        why = "a seed has no score there" if whole is None else f"with the largest size the ratios {NO_LAW}"
        return f"{line}; not extrapolated, since {why}"
    ahead = whole.forecast(BEYOND * sizes[-1])
    if ahead.low <= 1 <= ahead.high:
        ends = "the ranking may flip"
    elif means[-1].low <= 1 <= means[-1].high:
        ends = "the ranking of the largest is open"
    else:
        ends = "the ranking flips" if (ahead.median > 1) != (means[-1].median > 1) else "the ranking stays"
    return f"{line}; extrapolated to {BEYOND} times the largest {_with_ends(ahead)}: {ends}"


def _with_ends(value: Estimate) -> str:
    return _shown(value) if math.isnan(value.median) else f"{_shown(value)} [{value.low:.3g}, {value.high:.3g}]"


def _shown(value: Estimate) -> str:
    return "unknown" if math.isnan(value.median) else f"{value.median:.3g}"
