"""The contenders of a comparison, from a command line, and the configurations of their runs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsgd.cli.compose import ConfigTree, Job
from dsgd.comparison.options import CompareOptions
from dsgd.comparison.tuning import Axis, Values
from dsgd.record.safe_text import counted
from dsgd.runner.configuration import configure
from dsgd.runner.values import ConfigError, shown, value_at
from dsgd.sweep.manifest import identity

FOLDERS = ("hydra.sweep.dir=.", "hydra.sweep.subdir=.")  # folders of jobs, unused
MARGIN = 0.02  # share of the loss, or of the errors, by which the target is harder when a budget is tuned
TUNING_SEEDS = 100_000  # added to the seed for tuning runs
_NOTHING = object()
RESERVED = ("seed", "resume", "hydra", "sweep", "data.validation", "data.evaluate")


@dataclass(frozen=True)
class Entry:
    """A contender before any of its runs.

    name: unique name. overrides: its part of the command line. axes: its tuned keys. seed: seed of the first measured
    run. values: its configuration, with tuned keys at their defaults. barrier: `Algorithm.barrier` (`dsgd.worker`)."""

    name: str
    overrides: tuple[str, ...]
    axes: tuple[Axis, ...]
    seed: int
    values: Mapping[str, Any]
    barrier: bool

    @property
    def algo(self) -> str:
        """Return the name of the algorithm."""
        return str(self.values["algo"]["name"])


@dataclass(frozen=True)
class Composer:
    """Composes the runs of contenders."""

    _tree: ConfigTree
    _options: CompareOptions

    def entries(self, overrides: Sequence[str]) -> list[Entry]:
        """Return the contenders of a command line. Raises ConfigError."""
        given = self._check_keys(overrides)
        self._check_shared(overrides)
        parts = self._parts(given)
        jobs = [job for part in parts for job in self._tree.grid([*overrides, *part], FOLDERS)]
        if not jobs:
            raise ConfigError(f"a comparison must have contenders, got none from {' '.join(overrides)}")
        for job in jobs:
            if job.values["resume"] is not None:
                raise ConfigError(f"resume must be null in a comparison, got {job.values['resume']}")
            if checked_seed(job.values["seed"]) + self._options.seeds > TUNING_SEEDS:
                raise ConfigError(f"seed must be < {TUNING_SEEDS - self._options.seeds}, got {job.values['seed']}")
        axes = self._axes(given, jobs)
        entries: dict[str, Entry] = {}
        for name, job in zip(_names(jobs), jobs, strict=True):
            tuned_axes = tuple(axis for axis in axes if _has(job.values, axis.key))
            barrier = configure(job.values).experiment.algo.barrier
            entry = Entry(name, tuple(job.overrides), tuned_axes, int(job.values["seed"]), job.values, barrier)
            if (key := identity(job.values)) in entries:
                raise ConfigError(f"contenders must differ, got {entries[key].name} and {name} with one configuration")
            entries[key] = entry
        return list(entries.values())

    def tuning(self, entry: Entry, values: Sequence[Values], limit_s: float | None) -> dict[Values, list[Job]]:
        """Return the runs that try values of the tuned keys, one for each seed of tuning. Test data play no part.

        If a budget is tuned, their target is harder by MARGIN: a target met by luck would be missed in measuring.

        limit_s: time limit in addition to their budget; None: no limit."""
        seeds = [entry.seed + TUNING_SEEDS + i for i in range(self._options.tune_seeds)]
        budget = entry.values["budget"]["time_s"]
        limits = [] if limit_s is None or (budget is not None and budget <= limit_s) else [f"budget.time_s={limit_s!r}"]
        fixed = [f"data.validation={self._options.validation}", "data.evaluate=validation", *limits, *_target(entry)]
        return {point: self._runs(entry, point, seeds, fixed) for point in values}

    def measuring(self, entry: Entry, chosen: Values, *conditions: str) -> list[Job]:
        """Return the runs that measure a contender with the chosen values, one for each seed. They train on the same
        samples as tuning runs. conditions: further overrides, for other conditions."""
        seeds = [entry.seed + i for i in range(self._options.seeds)]
        held_out = [f"data.validation={self._options.validation}"] if entry.axes else []
        return self._runs(entry, chosen, seeds, [*held_out, *conditions])

    def conditions(self, cell: Mapping[str, Any]) -> list[str]:
        """Return other conditions as overrides. cell: key, value."""
        return [f"{key}={literal(value)}" for key, value in cell.items()]

    def check_conditions(self, entries: Sequence[Entry], keys: Sequence[str], option: str = "compare.whatif") -> None:
        """Raise ConfigError for a key of other conditions that distinguishes contenders, or that is reserved.

        option: the option that names the keys."""
        for key in keys:
            if key.partition(".")[0] in RESERVED or key in RESERVED:
                raise ConfigError(f"{option} must not name {key}, which all runs have in common")
            if any(axis.key == key for entry in entries for axis in entry.axes):
                raise ConfigError(f"{option} must not name {key}, which is tuned")
            if len({shown(value_at(entry.values, key, _NOTHING)) for entry in entries}) > 1:
                raise ConfigError(f"{option} must not name {key}, by which contenders differ")

    def _runs(self, entry: Entry, point: Values, seeds: Sequence[int], others: Sequence[str]) -> list[Job]:
        chosen = [f"{axis.key}={value!r}" for axis, value in zip(entry.axes, point, strict=True)]
        return self._tree.grid([*entry.overrides, *others, *chosen, f"seed={','.join(map(str, seeds))}"], FOLDERS)

    def _check_keys(self, overrides: Sequence[str]) -> set[str]:
        """Return the keys that the command line sets. Raises ConfigError for reserved keys."""
        keys = set()
        for override in self._tree.parse(overrides):
            key = override.key_or_group
            parts = {key, key.partition(".")[0].partition("/")[0]}
            if key == "seed" and override.is_sweep_override():
                raise ConfigError(
                    f"seed must be one value, got {override.get_value_string()}; compare.seeds=5: so many"
                )
            if parts & set(RESERVED) - {"seed"}:
                raise ConfigError(f"{key} must not be given: dsgd-compare says what is evaluated and what goes on")
            keys.add(key)
        return keys

    def _check_shared(self, overrides: Sequence[str]) -> None:
        """Raise ConfigError for an option of an algorithm that is given to all contenders, and that not all have."""
        parsed = self._tree.parse(overrides)
        choices = [override for override in parsed if override.key_or_group == "algo" and override.is_discrete_sweep()]
        algos = [text for override in choices for text in override.sweep_string_iterator()]
        for override in parsed if len(algos) > 1 else ():
            group, _, name = (key := override.key_or_group).partition(".")
            if group != "algo" or not name:
                continue
            having = [algo for algo in algos if name in self._tree.load([f"algo={algo}"])["algo"]]
            if having and len(having) < len(algos):
                option = f", {key}: {override.get_value_string()}"
                each = ", ".join(f"{{algo: {algo}{option if algo in having else ''}}}" for algo in algos)
                lacking = ", ".join(f"algo={algo}" for algo in algos if algo not in having)
                rule = f"{key} must be a key of every contender, which it is not of {lacking}"
                raise ConfigError(f"{rule}; in place of both: compare.contenders='[{each}]'")

    def _parts(self, given: set[str]) -> list[list[str]]:
        """Return the overrides of each of `compare.contenders`; one empty list without that option."""
        if self._options.contenders is None:
            return [[]]
        parts = []
        for contender in self._options.contenders:
            part = [f"{key}={literal(value)}" for key, value in contender.items()]
            for override in self._tree.parse(part):
                key = override.key_or_group
                if key in given:
                    raise ConfigError(f"compare.contenders must not set {key}, which the command line sets, too")
                if key.partition(".")[0] in RESERVED or key in RESERVED:
                    raise ConfigError(f"compare.contenders must not set {key}, which all have in common")
            parts.append(part)
        return parts

    def _axes(self, given: set[str], jobs: Sequence[Job]) -> list[Axis]:
        """Return the keys to tune: from the options, or the learning rate unless it is given."""
        set_by = {**dict.fromkeys(given, "the command line")}
        for contender in self._options.contenders or []:
            set_by |= dict.fromkeys(map(str, contender), "compare.contenders")
        axes = self._options.axes()
        if self._options.tune is None:
            return [axis for axis in axes if axis.key not in set_by]
        for axis in axes:
            if axis.key in set_by:
                raise ConfigError(f"compare.tune must not name {axis.key}, which {set_by[axis.key]} sets")
            if axis.key in RESERVED or not any(_has(job.values, axis.key) for job in jobs):
                # says which keys are near, if there is no such key at all
                self._tree.load([*jobs[0].overrides, f"{axis.key}={axis.low!r}"])
                raise ConfigError(f"compare.tune must name keys of contenders, got {axis.key}, which none has")
        return axes


def literal(value: Any) -> str:
    """Write a value as on the command line. A word is as its user would type it there."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(literal, value)) + "]"
    return str(value)


def checked_seed(seed: Any) -> int:
    """Return the seed of the first measured run. Raises ConfigError."""
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigError(f"seed must be an integer >= 0, got {shown(seed)}")
    return seed


def _has(values: Mapping[str, Any], key: str) -> bool:
    return value_at(values, key, _NOTHING) is not _NOTHING


def _target(entry: Entry) -> list[str]:
    """Return the target of tuning as overrides; empty unless a budget is tuned and a target is given."""
    if not any(axis.key.startswith("budget.") for axis in entry.axes):
        return []
    loss, accuracy = (entry.values["target"][name] for name in ("loss", "accuracy"))
    harder = [] if loss is None else [f"target.loss={loss * (1 - MARGIN)!r}"]
    return harder if accuracy is None else [*harder, f"target.accuracy={1 - (1 - accuracy) * (1 - MARGIN)!r}"]


def _names(jobs: Sequence[Job]) -> list[str]:
    """Name contenders by the algorithm and by their other differences: `gossip tau=10, 16 nodes`.

    A value that follows another key, `${cluster.slow_nodes}`, is omitted if the names differ without it."""
    given = [job.typed for job in jobs]
    keys = dict.fromkeys(itertools.chain.from_iterable(given))
    differing = [key for key in keys if len({values.get(key) for values in given}) > 1 and key not in ("algo", "nodes")]
    chosen = [key for key in differing if not all(values.get(key, "$").startswith("$") for values in given)]
    several_nodes = len({job.values["nodes"] for job in jobs}) > 1
    for shown_keys in (chosen, differing):
        names = []
        for job, values in zip(jobs, given, strict=True):
            options = [f"{key.removeprefix('algo.')}={values[key]}" for key in shown_keys if key in values]
            nodes = f", {counted(job.values['nodes'], 'node')}" if several_nodes else ""
            names.append(" ".join([str(job.values["algo"]["name"]), *options]) + nodes)
        if len({*names}) == len(names):
            break
    return names
