"""Name runs by their differences only; gather runs that differ only in their seed; find keys by their short names."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from dsgd.record.reader import Run, name_of, number
from dsgd.report.units import as_number, assigned

Flat = dict[str, str]  # a configuration: dotted key, value as a legend shows it

# places of outputs, not of computations
_UNNAMED = {"hydra", "track", "wandb", "tensorboard", "mlflow", "output", "output_dir", "resume", "trace"}
_CLOCKS = {"engine.name", "clock"}  # keys that distinguish virtual from wall time
_ENGINES = ("sim", "dist", "torch")  # each has its own clock; `auto` has either
LONGEST = 60  # characters of a value in a label
_SHORT = {"target.accuracy": "target"} | {key: key for key in ("target.loss", "target.stop", "data.evaluate")}


@dataclass(frozen=True)
class Series:
    """The runs of one configuration, shown by one curve. label: its difference from the other series. style: style of
    its curve among others."""

    label: str
    runs: list[Run]
    style: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def algorithm(self) -> str:
        """Return the name of the algorithm of the first run."""
        return self.runs[0].algorithm

    @property
    def nodes(self) -> int:
        """Return the number of nodes of the first run, or 0."""
        return self.runs[0].nodes or 0

    @property
    def by_nodes(self) -> dict[int, list[Run]]:
        """Return the runs that have ended by their number of nodes, ascending."""
        runs: dict[int, list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: run.nodes or 0):
            if run.status != "running":
                runs.setdefault(run.nodes or 0, []).append(run)
        return runs


def series(runs: Sequence[Run], apart_from: Collection[str] = ()) -> list[Series]:
    """Gather the runs of the same configuration and label them, in order of first appearance.

    Seeds are averaged over, and so not named, if some configuration ran with more than one.
    apart_from: dotted keys that neither separate nor name series, nor do keys that only follow them (`nodes`, and
    a learning rate chosen per node count)."""
    flats = flatten(runs)
    seedless = _without_followers([_without(flat, {"seed"}) for flat in flats], apart_from)
    gathered = gather(zip(runs, seedless, strict=True))
    if not apart_from and all(len(group) == 1 for _, group in gathered):
        gathered = gather(zip(runs, flats, strict=True))
    return labelled(gathered)


def labelled(gathered: Sequence[tuple[Flat, list[Run]]]) -> list[Series]:
    """Return the series of gathered runs, labelled by the differences of their configurations."""
    labels = label([flat for flat, _ in gathered])
    return [Series(name or group[0].algorithm, group) for name, (_, group) in zip(labels, gathered, strict=True)]


def gather(runs: Iterable[tuple[Run, Flat]]) -> list[tuple[Flat, list[Run]]]:
    """Gather runs with equal flat configurations, in order of first appearance."""
    groups: dict[frozenset[tuple[str, str]], tuple[Flat, list[Run]]] = {}
    for run, flat in runs:
        groups.setdefault(frozenset(flat.items()), (flat, []))[1].append(run)
    return list(groups.values())


def run_labels(runs: Sequence[Run]) -> list[str]:
    """Return one label per run, including a differing seed; the algorithm's name without differences."""
    return [name or run.algorithm for name, run in zip(label(flatten(runs)), runs, strict=True)]


def differing_settings(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return, for every dotted key in which configurations differ, its text in each run; empty for a run without the
    key."""
    flats = flatten(runs)
    keys = dict.fromkeys(key for flat in flats for key in flat)
    columns = {key: [flat.get(key, "") for flat in flats] for key in sorted(keys, key=_rank)}
    return {key: texts for key, texts in columns.items() if len(set(texts)) > 1}


def differing_keys(flats: Sequence[Flat]) -> list[str]:
    """Return the keys in which flat configurations differ from the first, but for the seed."""
    return sorted({key for flat in flats for key in flat if key != "seed" and flat[key] != flats[0].get(key)})


def find_key(runs: Sequence[Run], text: str, option: str) -> str:
    """Return the dotted key for a name: a key, a group (`algo`), or the end of one key (`lr`).

    Raises ValueError, with near matches, for an unknown or ambiguous name, and if some runs lack the key."""
    flats = flatten(runs)
    keys = list(dict.fromkeys(key for flat in flats for key in flat))
    matching = [key for key in keys if key in (text, f"{text}.name")] or [
        key for key in keys if key.endswith(f".{text}")
    ]
    if not matching:
        ends = {end: key for key in keys for end in (key, key.removesuffix(".name"), key.rpartition(".")[2])}
        near = dict.fromkeys(ends[end].removesuffix(".name") for end in get_close_matches(text, ends, cutoff=0.75))
        raise ValueError(f"{option} must be a key of the runs, got {text!r}{did_you_mean(near)}")
    if len(matching) > 1:
        raise ValueError(f"{option} must be one key, got {text!r}: {', '.join(matching)}")
    (key,) = matching
    if without := [run for run, flat in zip(runs, flats, strict=True) if key not in flat]:
        names = ", ".join(dict.fromkeys(run.algorithm for run in without))
        raise ValueError(f"{option} {key}: {len(without)} of {len(runs)} runs have no such key ({names})")
    return key


def in_order(texts: Iterable[str]) -> list[str]:
    """Sort the distinct values of a key: numbers by their value, then texts."""
    return sorted(set(texts), key=_in_order)


def clock_text(runs: Sequence[Run]) -> str:
    """Return `virtual`, `wall`, or for both the clock of each engine; empty before the first mark of all."""
    clocks = {run.clock for run in runs if run.clock}
    return "virtual (sim) or wall (dist)" if len(clocks) > 1 else "".join(clocks)


def goal_text(runs: Sequence[Run]) -> str:
    """Return the targets of the runs, like `test accuracy 0.9 or 0.95`; empty if no run has one."""
    kinds = []
    for aimed in ("test_accuracy", "test_loss"):
        levels = {run.target for run in runs if run.target is not None and run.target_field == aimed}
        if levels:
            kinds.append(f"{aimed.replace('_', ' ')} {' or '.join(f'{level:g}' for level in sorted(levels))}")
    return " or ".join(kinds)


def status_text(runs: Sequence[Run]) -> str:
    """Return the common status, or the number with each: `completed`, `diverged`, `2 of 3 interrupted`."""
    counts = Counter(run.outcome for run in runs if run.outcome != "completed")
    notes = [status if count == len(runs) else f"{count} of {len(runs)} {status}" for status, count in counts.items()]
    return ", ".join(notes) or "completed"


def status_note(runs: Sequence[Run]) -> str:
    """Return the status in brackets, ` (diverged)`, of runs that did not complete or have collapsed; otherwise
    empty."""
    return "" if (text := status_text(runs)) == "completed" else f" ({text})"


def time_notes(runs: Sequence[Run]) -> list[str]:
    """Return notes like `time of ResNet-18 on ImageNet; gradients of resnet8 on digits`, if the two differ, and a note
    on test numbers of a validation set."""
    texts = [
        f"time of {run.time_model}; gradients of {run.chosen('model')} on {run.chosen('data')}"
        for run in runs
        if run.time_model
    ]
    some = "" if len(texts) == len(runs) else "some runs: "
    validated = sum(run.setting("data.evaluate") == "validation" for run in runs)
    held_out = "test: of training samples held out (data.evaluate=validation)"
    notes = [some + text for text in dict.fromkeys(texts)]
    return [*notes, ("" if validated == len(runs) else "some runs: ") + held_out] if validated else notes


def label(flats: Sequence[Flat]) -> list[str]:
    """Return labels that name the differing keys: `gossip, tau=10`, `sync`; empty without differences.

    A group whose `name` differs is named by it, and its other keys only if they differ among runs with one name:
    `algo.tau` of easgd says nothing about gossip."""
    named: list[Flat] = [{} for _ in flats]
    for key in dict.fromkeys(key for flat in flats for key in flat):
        values: dict[tuple[str | None, ...], set[str | None]] = {}
        for flat in flats:
            values.setdefault(_group_names(flat, key), set()).add(flat.get(key))
        for flat, differing in zip(flats, named, strict=True):
            if key in flat and len(values[_group_names(flat, key)]) > 1:
                differing[key] = flat[key]
    short = _short_names(list(dict.fromkeys(key for differing in named for key in differing)))
    return [
        ", ".join(
            assigned(short[key], key, _shortened(differing[key])) if short[key] else _shortened(differing[key])
            for key in sorted(differing, key=_rank)
        )
        for differing in named
    ]


def flatten(runs: Sequence[Run]) -> list[Flat]:
    """Return the configuration of each run as dotted keys and text.

    The clock is added if records of both clocks are mixed and the engine's name does not imply it."""
    flats = []
    clocks = {run.clock for run in runs} - {None}
    for run in runs:
        flat: Flat = {}
        for key, value in run.config.items():
            if key not in _UNNAMED:
                _flatten_into(flat, key, value)
        if len(clocks) > 1 and run.clock and flat.get("engine.name") not in _ENGINES:
            flat["clock"] = run.clock
        for described in ("cluster.time_model", "cluster.gradient_of"):  # the first is a note of every figure
            flat.pop(described, None)
        flats.append(flat)
    seeds = {key for flat in flats for key in flat if key.endswith(".seed")}
    # seeds that always equal the run's own; a seed of 0 in all runs equals the first run's by chance
    followers = {key for key in seeds if all(flat.get(key) in (None, flat.get("seed")) for flat in flats)}
    return [_without(flat, followers) for flat in flats]


def _flatten_into(flat: Flat, key: str, value: Any) -> None:
    if isinstance(value, dict) and value and all(isinstance(part, str) for part in value):
        named = "name" in value
        for part, inner in value.items():
            if part == "name":
                _flatten_into(flat, f"{key}.name", name_of(value))
            elif part != "_target_":
                _flatten_into(flat, f"{key}.{part}", inner)
            elif not named:
                flat[f"{key}.name"] = str(inner).rpartition(".")[2]
    else:
        flat[key] = _text(value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_text(inner)}" for key, inner in value.items()) + "}"
    return "none" if value is None else json.dumps(value)


def _shortened(text: str) -> str:
    """Return the beginning of a text that would leave no room for a figure."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _group_names(flat: Flat, key: str) -> tuple[str | None, ...]:
    """Return the names of the groups of a key: its values are compared between runs with equal names."""
    parts = key.split(".")
    groups = [".".join(parts[:i]) + ".name" for i in range(1, len(parts))]
    return tuple(flat.get(group) for group in groups if group != key)


def _short_names(keys: list[str]) -> dict[str, str]:
    """Return the short name of a key: its shortest end that no other key has, like `lr`, but `model.width` next to
    `data.width`; nothing for the algorithm, whose name is enough."""
    ends = Counter(".".join(key.split(".")[i:]) for key in keys for i in range(key.count(".") + 1))
    short = {}
    for key in keys:
        shown = key.removesuffix(".name")
        parts = shown.split(".")
        candidates = [".".join(parts[i:]) for i in range(len(parts) - 1, -1, -1)]
        unique = (name for name in candidates if name != "name" and ends[name] <= 1)
        short[key] = "" if key == "algo.name" else _SHORT.get(key) or next(unique, shown)
    return short


def _rank(key: str) -> tuple[int, int]:
    """Sort the algorithm and the nodes first, the seed last."""
    first = ("algo.name", "nodes")
    return (first.index(key) if key in first else len(first), 1 if key == "seed" else 0)


def _without(flat: Flat, keys: Collection[str]) -> Flat:
    return {key: text for key, text in flat.items() if key not in keys}


def _without_followers(flats: Sequence[Flat], keys: Collection[str]) -> list[Flat]:
    """Drop these keys, and keys outside `algo` that are a function of them; but never the engine, because its times
    have another clock."""
    if not keys:
        return list(flats)
    followers = set(keys)
    for name in {name for flat in flats for name in flat if not name.startswith("algo.")} - _CLOCKS:
        seen = {(flat.get("algo.name"), *(flat.get(key) for key in keys), flat.get(name)) for flat in flats}
        single_valued = len({entry[:-1] for entry in seen}) == len(seen)
        if single_valued and len({(entry[0], entry[-1]) for entry in seen}) > len({entry[0] for entry in seen}):
            followers.add(name)
    return [_without(flat, followers) for flat in flats]


def _in_order(text: str) -> tuple[int, float, str]:
    """Return a sorting key: numbers by their value, then texts."""
    value = number(as_number(text))
    return (1, 0.0, text) if math.isnan(value) else (0, value, text)


def did_you_mean(near: Sequence[str] | dict[str, None]) -> str:
    """Return the end of a message with near matches."""
    return f"; did you mean {' or '.join(near)}?" if near else ""
