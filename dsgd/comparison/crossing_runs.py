"""Find where one of two contenders overtakes the other, by rounds of runs for all seeds together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dsgd.cli.compose import Job
from dsgd.comparison.bisection import Bracket, Enclosure, enclose
from dsgd.comparison.comparison_verdict import Overtaking, written
from dsgd.comparison.contenders import goal_of, score
from dsgd.comparison.derived import derived
from dsgd.comparison.entries import Composer, Entry
from dsgd.comparison.rounds import Runner
from dsgd.comparison.stages import Search, derives
from dsgd.record.reader import Run
from dsgd.runner.values import ConfigError

RunPairs = dict[float, tuple[Run, Run]]  # by the value of the key, the runs of the two contenders


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
    """Raise ConfigError if the key means nothing to the engine: before any run."""
    if engine == "dist" and bracket.key.startswith("cluster."):
        raise ConfigError(f"compare.crossing={bracket.key} needs engine=sim: real processes ignore it")


def find_crossing(
    bracket: Bracket, searches: Sequence[Search], before: Mapping[str, list[Run]], composer: Composer, runner: Runner
) -> Overtaking:
    """Return where one of two contenders overtakes the other, with the values that tuning has chosen.

    before: the measured runs of both, by their names, a run for each seed. Raises ConfigError after the runs at the two
    ends if the bracket does not hold the crossing of most seeds."""
    seeds = range(len(before[searches[0].entry.name]))
    runs: list[RunPairs] = [{} for _ in seeds]
    ends = (bracket.low, bracket.high)
    left = len(seeds) * len(searches) * bracket.halvings
    _measure({value: list(seeds) for value in ends}, bracket.key, searches, before, composer, runner, runs, left)
    first_below = _leader_below(bracket, searches, runs)
    while True:
        enclosures = [_enclosure(bracket, pairs, first_below) for pairs in runs]
        wanted: dict[float, list[int]] = {}
        for seed, enclosure in enumerate(enclosures):
            if enclosure.next is not None:
                wanted.setdefault(enclosure.next, []).append(seed)
        if not wanted:
            break
        left -= len(searches) * sum(map(len, wanted.values()))
        _measure(wanted, bracket.key, searches, before, composer, runner, runs, max(left, 0))
    order = (0, 1) if first_below else (1, 0)
    below, above = (searches[i].entry for i in order)
    tried = sorted({value for pairs in runs for value in pairs})
    return Overtaking(
        bracket.key,
        below.name,
        above.name,
        (below.algo, above.algo),
        [(enclosure.low, enclosure.high) for enclosure in enclosures],
        {value: [_ordered(pairs[value], order) for pairs in runs if value in pairs] for value in tried},
    )


def _measure(
    wanted: Mapping[float, Sequence[int]],
    key: str,
    searches: Sequence[Search],
    before: Mapping[str, list[Run]],
    composer: Composer,
    runner: Runner,
    runs: Sequence[RunPairs],
    later: int,
) -> None:
    """Run both contenders in one round, and add the pairs to `runs`. wanted: values of the key, each with its seeds.

    later: how many runs will follow, about."""
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
    for value, seeds in wanted.items():
        sides = []
        for search in searches:
            name = search.entry.name
            measured = [next(records) for _ in seeds]
            if timed[name]:
                measured = [derived(before[name][seed], run) for seed, run in zip(seeds, measured, strict=True)]
            sides.append(measured)
        for seed, pair in zip(seeds, zip(*sides, strict=True), strict=True):
            runs[seed][value] = (pair[0], pair[1])


def _enclosure(bracket: Bracket, pairs: RunPairs, first_below: bool) -> Enclosure:
    leads = {value: _first_leads(pair) for value, pair in pairs.items()}
    return enclose(bracket, {value: None if lead is None else lead == first_below for value, lead in leads.items()})


def _first_leads(pair: tuple[Run, Run]) -> bool | None:
    """Return whether the first contender is ahead; None where neither is."""
    first, second = (score(run, goal_of(run)) for run in pair)
    return None if first == second or math.isnan(first + second) else first < second


def _leader_below(bracket: Bracket, searches: Sequence[Search], runs: Sequence[RunPairs]) -> bool:
    """Return whether the first contender is the one that leads at low values. Raises ConfigError if neither leads there
    and is overtaken at the other end on most seeds."""
    at_ends = [tuple(_first_leads(pairs[value]) for value in (bracket.low, bracket.high)) for pairs in runs]
    for first_below in (True, False):
        if 2 * at_ends.count((first_below, not first_below)) > len(runs):
            return first_below
    names = [search.entry.name for search in searches]
    counts = [
        f"{names[0]} is ahead on {leads.count(True)} of {len(runs)} seeds and {names[1]} on {leads.count(False)} "
        f"at {written(bracket.key, value)}"
        for value, leads in zip((bracket.low, bracket.high), zip(*at_ends, strict=True), strict=True)
    ]
    raise ConfigError(
        f"compare.bracket must hold the crossing of most seeds, got [{bracket.low:g}, {bracket.high:g}] of "
        f"{bracket.key}: {', '.join(counts)}"
    )


def _ordered(pair: tuple[Run, Run], order: tuple[int, int]) -> tuple[Run, Run]:
    return pair[order[0]], pair[order[1]]
