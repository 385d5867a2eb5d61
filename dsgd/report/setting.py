"""Describe the circumstances of runs, so that a result can be read without its author.

The caption has the settings that the runs share, except defaults, in readable units. A number in which they differ has
its values, or the smallest and the largest. The complete setting is `whole_setting`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from string import Formatter
from typing import Any

from dsgd.record.reader import Run, number
from dsgd.record.safe_text import plain_number
from dsgd.report.fields import DERIVED, field_value, rule_text
from dsgd.report.key_table import key_table, usual, usual_of_data
from dsgd.report.labels import differing_settings, flatten, goal_text
from dsgd.report.units import bandwidth, in_units, share, unit_of

MOST_VALUES = 5  # of a number that are listed; of more the smallest and the largest
_OF_CHOICE = {"_target_", "name", "label", "target", "arguments", "root", "path"}  # no arguments of a model or data set
_ALWAYS = ("cluster.bandwidth", "cluster.latency_s")  # are said also where they are as conf/ has them
_COUNTS = ("nodes", "budget.epochs", "budget.samples", "budget.steps")

ValueText = Callable[[Any], str]
_duration, _size = partial(in_units, unit="s"), partial(in_units, unit="bytes")


def setting_text(runs: Sequence[Run]) -> str:
    """Return the caption of some runs, in one line; empty without runs."""
    if not runs:
        return ""
    budget = _joined(", ", [_spanned(runs, key) for key in _worded_keys("budget")])
    problem = any(map(_needs_problem, runs))
    parts = [
        _joined(" on ", [_choice(runs, "model"), _choice(runs, "data")]) if problem else "times alone, no training",
        _optimizer(runs) if problem else "",
        _schedule(runs) if problem else "",
        _spanned(runs, "batch_size"),
        _unusual(runs, "precision"),
        f"budget {budget}" if budget else "",
        _spanned(runs, "nodes"),
        _topology(runs),
        *_machines(runs),
        f"target: {goal}, reached {rule_text(runs)}" if (goal := goal_text(runs)) else "",
        _unusual(runs, "data.validation"),
        _spanned(runs, "seed", lambda text: f"seeds {text.replace(' or ', ' and ')}"),
    ]
    text = "; ".join(part for part in parts if part)
    return f"setting: {text}" if text else ""


def whole_setting(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the setting of some runs as plain values, as JSON has them: its caption, the keys that all share, and each
    run with its differing keys and its time to target, null if that is censored or unknown."""
    differing = differing_settings(runs)
    flats = flatten(runs)
    listed = []
    for i, run in enumerate(runs):
        values = {name: field_value(run, name) for name in DERIVED if "crossing" in name or "target" in name}
        known = {name: value if math.isfinite(value) else None for name, value in values.items()}
        keys = {key: texts[i] for key, texts in differing.items()}
        listed.append({"folder": str(run.folder), "status": run.outcome, **keys, **known})
    shared = {key: text for key, text in (flats[0] if flats else {}).items() if key not in differing}
    return {"setting": setting_text(runs).removeprefix("setting: "), "shared": shared, "runs": listed}


def _needs_problem(run: Run) -> bool:
    """Return whether model and data matter to a run: it trains, or takes the size of its messages, or its gradient
    time, from them."""
    given = run.setting("cluster.message_bytes") and run.setting("cluster.gradient_s")
    return run.setting("engine.gradients") != "none" or not given


def _machines(runs: Sequence[Run]) -> list[str]:
    """Return the text on the cluster of simulated runs; real processes do not use these settings."""
    simulated = [run for run in runs if run.clock != "wall"]
    if not simulated:
        return ["real processes"]
    return [
        *(_each(simulated, key) for key in _worded_keys("cluster")),
        _gradient_time(simulated),
        _messages(simulated),
        "real processes besides" if len(simulated) < len(runs) else "",
    ]


def _gradient_time(runs: Sequence[Run]) -> str:
    """Return the time of a gradient, and whether it was given or measured."""
    given = [number(run.setting("cluster.gradient_s")) for run in runs]
    measured = [number(run.final("gradient_s")) for run in runs]
    known = [ours if math.isnan(time_s) else time_s for time_s, ours in zip(given, measured, strict=True)]
    if not (numbers := [value for value in known if not math.isnan(value)]):
        return ""
    kinds = {"measured" if math.isnan(value) else "given" for value in given}
    return f"gradient of {_listed(numbers, _duration)} ({' or '.join(sorted(kinds))})"


def _messages(runs: Sequence[Run]) -> str:
    """Return a text on messages of another size than the model's, with their model if known."""
    sizes = [run.setting("cluster.message_bytes") for run in runs]
    if not any(sizes):
        return ""
    names = {str(run.setting("cluster.time_model") or "").partition(",")[0] for run in runs} - {""}
    whose = f"those of {' or '.join(sorted(names))}" if names else "not of the model's own size"
    models = _choice_names([run for run in runs if _needs_problem(run)], "model")
    gradients = f", gradients of {' or '.join(models)}" if models else ""
    some = "" if all(sizes) else "some "
    return f"{some}messages of {_listed([number(value) for value in sizes if value], _size)}, {whose}{gradients}"


def _optimizer(runs: Sequence[Run]) -> str:
    name = _shared(runs, "optimizer.name") or str(_shared(runs, "optimizer._target_") or "").rpartition(".")[2]
    shown, (rate, *others) = "SGD" if name == "sgd" else str(name), _worded_keys("optimizer")
    return _joined(", ", [shown, _spanned(runs, rate), *(_unusual(runs, key) for key in others)])


def _schedule(runs: Sequence[Run]) -> str:
    kind = _shared(runs, "schedule.kind")
    steps = f" at {value_text(_shared(runs, 'schedule.milestones'))}" if kind == "step" else ""
    others = [_unusual(runs, key) for key in _worded_keys("schedule")]
    return _joined(", ", [f"{kind} schedule{steps}" if kind else "", *others])


def _topology(runs: Sequence[Run]) -> str:
    name = _shared(runs, "topology.name")
    return "" if name in (None, usual()["topology.name"]) else f"topology {name}"


def _choice(runs: Sequence[Run], group: str) -> str:
    """Return the shared choice of a group with its arguments: `mlp (hidden [64])`; empty if it differs."""
    names = _choice_names(runs, group)
    if len(names) != 1:
        return ""
    keys = dict.fromkeys(key for run in runs for key in run.setting(group) or {} if key not in _OF_CHOICE)
    silent = {key.removeprefix(f"{group}."): value for key, value in usual().items() if key.startswith(f"{group}.")}
    if group == "data":
        silent |= usual_of_data(str(_shared(runs, "data.name")))
    texts = []
    for key in keys:
        value = _shared(runs, f"{group}.{key}")
        if value is not None and not (key in silent and value == silent[key]) and key != "validation":
            texts.append(f"{key} {value_text(value)}")
    return f"{names[0]} ({', '.join(texts)})" if texts else names[0]


def _choice_names(runs: Sequence[Run], group: str) -> list[str]:
    return list(dict.fromkeys(name for run in runs if (name := run.chosen(group))))


def _spanned(runs: Sequence[Run], key: str, several: Callable[[str], str] | None = None) -> str:
    """Return the text of a number; for several, the text of their list, or of the smallest and the largest.

    several: writes a list; None: as a single number."""
    values = [value for run in runs if (value := run.setting(key)) is not None]
    if not values or any(number(value) != value for value in values):
        return ""
    if len(distinct := sorted(set(values))) == 1:
        if key not in _COUNTS:
            return _worded(key, distinct[0])
        return _worded(key, _Written(plain_number(distinct[0]))).removesuffix("s" * (distinct[0] == 1))
    listed = _listed(distinct, _duration if unit_of(key) == "s" else plain_number)
    return several(listed) if several else _worded(key, _Written(listed))


def _listed(values: Sequence[float], text: ValueText) -> str:
    distinct = sorted(set(values))
    consecutive = all(isinstance(value, int) for value in distinct) and distinct[-1] - distinct[0] == len(distinct) - 1
    if len(distinct) > MOST_VALUES or (consecutive and len(distinct) > 2):
        return f"{text(distinct[0])} to {text(distinct[-1])}"
    *before, last = map(text, distinct)
    return f"{', '.join(before)} or {last}" if before else last


def _worded_keys(group: str) -> list[str]:
    """Return the keys of a group that a caption can say, in its order."""
    return [key for key, declared in key_table().items() if key.startswith(f"{group}.") and declared.caption]


def _unusual(runs: Sequence[Run], key: str) -> str:
    """Return the text of a value that all share and that is not the usual one; empty otherwise."""
    value = _shared(runs, key)
    is_default = key not in _ALWAYS and key in usual() and value == usual()[key]
    return "" if value is None or is_default else _worded(key, value)


def _each(runs: Sequence[Run], key: str) -> str:
    """Return the text of a value of the cluster that is not the usual one; of several numbers the text of each."""
    if _shared(runs, key) is not None:
        return _unusual(runs, key)
    values = [run.setting(key) for run in runs]
    numbers = [number(value) for value in values]
    return _listed(numbers, partial(_worded, key)) if numbers == values else ""


def _worded(key: str, value: Any) -> str:
    """Return the text of a value; of one that no run of today can have, as in a record of another version, plainly."""
    try:
        return _Caption(key).format(key_table()[key].caption, value)
    except (LookupError, TypeError, ValueError):
        return f"{key} {value}"


class _Written(str):
    """Numbers that are texts already."""


class _Caption(Formatter):
    """Writes the value in the caption of a key, as a person reads it."""

    def __init__(self, key: str) -> None:
        self._key = key

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a value by one of WRITTEN or as Python does; without a format in the unit of the key."""
        if isinstance(value, _Written):
            return value
        if format_spec:
            return WRITTEN[format_spec](value) if format_spec in WRITTEN else format(value, format_spec)
        text = share if key_table()[self._key].unit == "%" else _IN_UNIT.get(unit_of(self._key), value_text)
        return _by_node(value, text) if isinstance(value, Mapping) else text(value)


def _shared(runs: Sequence[Run], key: str) -> Any:
    """Return the common value of a key in all runs; None if they differ."""
    values = [run.setting(key) for run in runs]
    return values[0] if all(value == values[0] for value in values) else None


def value_text(value: Any) -> str:
    """Return a value of a key as one types it, numbers in six digits."""
    if isinstance(value, float):
        return f"{value:g}"
    return "[" + ", ".join(map(value_text, value)) + "]" if isinstance(value, list) else str(value)


def _by_node(value: Any, text: ValueText) -> str:
    nodes = value.items() if isinstance(value, Mapping) else None
    return str(value) if nodes is None else ", ".join(f"{node} ({text(each)})" for node, each in nodes)


def _entries(value: Any) -> str:
    entries = value if isinstance(value, list) else [value]
    return "; ".join(
        ", ".join(f"{k} {value_text(v)}" for k, v in entry.items()) for entry in entries if isinstance(entry, Mapping)
    )


def _regions(links: Mapping[str, Any]) -> str:
    """Return the names of regions, and the span of what is between them: `us, eu, asia (1 Gbit/s, 45 to 80 ms)`."""
    spans = [_span(links[name], text) for name, text in (("bandwidth", bandwidth), ("latency_s", _duration))]
    return f"{', '.join(map(str, links['regions']))} ({', '.join(spans)})"


def _span(rows: Sequence[Sequence[Any]], text: ValueText) -> str:
    """Return the smallest and the largest number of a matrix, but for its diagonal."""
    values = [value for i, row in enumerate(rows) for j, value in enumerate(row) if i != j and value is not None]
    least, most = text(min(values)), text(max(values))
    size, _, unit = least.rpartition(" ")
    return most if least == most else f"{size if most.endswith(f' {unit}') else least} to {most}"


def _joined(separator: str, parts: Sequence[str]) -> str:
    return separator.join(part for part in parts if part)


_IN_UNIT: Mapping[str | None, ValueText] = {"s": _duration, "bytes": _size, "bit/s": bandwidth}
# how captions have other values written
WRITTEN: Mapping[str, ValueText] = {
    "entries": _entries,
    "factors": partial(_by_node, text=lambda factor: f"{factor:g} times as long"),
    "file": lambda value: PurePath(value).name,
    "regions": _regions,
}
