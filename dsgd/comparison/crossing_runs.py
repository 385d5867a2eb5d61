"""Find the crossing of two contenders: a key's value is bisected on a logarithmic scale, seed by seed, by rounds of
runs for all seeds together.

The next value is a function of the scores so far, so a killed comparison continues as if it had not been killed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dsgd.cli.compose import Job
from dsgd.comparison.comparison_verdict import Overtaking, in_its_unit
from dsgd.comparison.contenders import score
from dsgd.comparison.entries import Composer, Entry
from dsgd.comparison.options import Bracket
from dsgd.comparison.rounds import Runner
from dsgd.comparison.stages import Search, derives, whatif_run
from dsgd.record.reader import Run
from dsgd.runner.values import ConfigError


@dataclass(frozen=True)
class Enclosure:
    """The two values between which the crossing of a seed lies. low: 0, high: infinite without a bound. next: the value
    to try; None when the search is over."""

    low: float
    high: float
    next: float | None = None


def enclose(bracket: Bracket, ahead: Mapping[float, bool | None]) -> Enclosure:
    """Return a seed's bounds of the crossing. ahead: {value of the key: whether the contender that leads at low values
    is ahead}; None if neither is."""
    if missing := [value for value in (bracket.low, bracket.high) if value not in ahead]:
        return Enclosure(0.0, math.inf, missing[0])
    starts, goes_on = ahead[bracket.low], ahead[bracket.high]
    if starts is not True or goes_on is not False:
        # the bracket does not enclose this seed's crossing, which lies outside, on the side that the ends show, if they
        # do
        above = bracket.high if starts and goes_on else bracket.low if starts else 0.0
        below = bracket.low if starts is False and goes_on is False else bracket.high if goes_on is False else math.inf
        return Enclosure(above, below)
    low, high = bracket.low, bracket.high
    while (value := bracket.middle(low, high)) is not None:
        if value not in ahead:
            return Enclosure(low, high, value)
        leads = ahead[value]
        if leads is None:
            break
        low, high = (value, high) if leads else (low, value)
    return Enclosure(low, high)


def check_crossing(entries: Sequence[Entry]) -> None:
    """Raise ConfigError if a comparison cannot have a crossing: before any run."""
    if len(entries) != 2:
        names = "; ".join(entry.name for entry in entries)
        raise ConfigError(f"compare.crossing needs two contenders, got {len(entries)}: {names}")
    check_target("compare.crossing", entries)


def check_target(option: str, entries: Sequence[Entry]) -> None:
    """Raise ConfigError if some contender has no target, which an option needs."""
    for entry in entries:
        target = entry.values["target"]
        if target["accuracy"] is None and target["loss"] is None:
            raise ConfigError(f"{option} needs target.accuracy or target.loss, got neither")


def check_engine(bracket: Bracket, engine: str) -> None:
    """Raise ConfigError, before any run, if the key has no effect with the engine."""
    if engine == "dist" and bracket.key.startswith("cluster."):
        raise ConfigError(f"compare.crossing={bracket.key} needs engine=sim: real processes ignore it")


def find_crossing(
    bracket: Bracket, searches: Sequence[Search], before: Mapping[str, list[Run]], composer: Composer, runner: Runner
) -> Overtaking:
    """Return the crossing of two contenders, with their tuned values.

    before: {name: measured runs of the contender, one for each seed}. Raises ConfigError after the runs at the two ends
    if the bracket does not enclose the crossing of most seeds."""
    seeds = range(len(before[searches[0].entry.name]))
    ends = (bracket.low, bracket.high)
    left = len(seeds) * len(searches) * bracket.halvings
    both = {value: list(seeds) for value in ends}
    pairs = _measured(both, bracket.key, searches, before, composer, runner, left)
    first_below = _leader_below(bracket, searches, [[pairs[value, seed] for seed in seeds] for value in ends])
    while True:
        ahead: list[dict[float, bool | None]] = [{} for _ in seeds]
        for (value, seed), pair in pairs.items():
            ahead[seed][value] = _leads(pair, first_below)
        enclosures = [enclose(bracket, of_seed) for of_seed in ahead]
        wanted: dict[float, list[int]] = {}
        for seed, enclosure in enumerate(enclosures):
            if enclosure.next is not None:
                wanted.setdefault(enclosure.next, []).append(seed)
        if not wanted:
            break
        left -= len(searches) * sum(map(len, wanted.values()))
        pairs |= _measured(wanted, bracket.key, searches, before, composer, runner, max(left, 0))
    first, second = (search.entry for search in searches)
    below, above = (first, second) if first_below else (second, first)
    runs: dict[float, list[tuple[Run, Run]]] = {}
    for value, seed in sorted(pairs):
        ours, theirs = pairs[value, seed]
        runs.setdefault(value, []).append((ours, theirs) if first_below else (theirs, ours))
    return Overtaking(
        bracket.key,
        below.name,
        above.name,
        (below.algo, above.algo),
        [(enclosure.low, enclosure.high) for enclosure in enclosures],
        runs,
    )


def _measured(
    wanted: Mapping[float, Sequence[int]],
    key: str,
    searches: Sequence[Search],
    before: Mapping[str, list[Run]],
    composer: Composer,
    runner: Runner,
    later: int,
) -> dict[tuple[float, int], tuple[Run, Run]]:
    """Return the runs of both contenders, made in one round, by the value of the key and the place of the seed.

    wanted: {value of the key: seeds}. later: estimated number of following runs."""
    jobs: list[Job] = []
    timed = {search.entry.name: derives(search, before, [key]) for search in searches}
    for value, seeds in wanted.items():
        for search in searches:
            conditions = composer.conditions({key: value})
            conditions += ["engine.gradients=none"] if timed[search.entry.name] else []
            label = " ".join(["crossing", search.label(search.chosen), *conditions])
            composed = composer.measuring(search.entry, search.chosen, *conditions)
            jobs += [replace(composed[seed], label=label) for seed in seeds]
    records = iter(runner.run(jobs, later, about=True))
    pairs: dict[tuple[float, int], tuple[Run, Run]] = {}
    for value, seeds in wanted.items():
        sides = []
        for search in searches:
            name = search.entry.name
            measured = [next(records) for _ in seeds]
            if timed[name]:
                measured = [whatif_run(before[name][seed], run) for seed, run in zip(seeds, measured, strict=True)]
            sides.append(measured)
        for seed, pair in zip(seeds, zip(*sides, strict=True), strict=True):
            pairs[value, seed] = (pair[0], pair[1])
    return pairs


def _leads(pair: tuple[Run, Run], first: bool = True) -> bool | None:
    """Return whether the first contender is ahead of the second; None if neither is ahead."""
    ours, theirs = (score(run) for run in pair)
    return None if ours == theirs or math.isnan(ours + theirs) else (ours < theirs) == first


def _leader_below(bracket: Bracket, searches: Sequence[Search], ends: Sequence[Sequence[tuple[Run, Run]]]) -> bool:
    """Return whether the first contender is the one that leads at low values. ends: runs of each seed at both ends of
    the bracket. Raises ConfigError unless one leads at low values and is overtaken at the other end on most seeds."""
    leads = [[_leads(pair) for pair in end] for end in ends]
    seeds = len(leads[0])
    for first_below in (True, False):
        if 2 * list(zip(*leads, strict=True)).count((first_below, not first_below)) > seeds:
            return first_below
    names = [search.entry.name for search in searches]
    counts = [
        f"{names[0]} is ahead on {of_end.count(True)} of {seeds} seeds and {names[1]} on {of_end.count(False)} "
        f"at {in_its_unit(bracket.key, value)}"
        for value, of_end in zip((bracket.low, bracket.high), leads, strict=True)
    ]
    raise ConfigError(
        f"compare.bracket must hold the crossing of most seeds, got [{bracket.low:g}, {bracket.high:g}] of "
        f"{bracket.key}: {', '.join(counts)}"
    )
