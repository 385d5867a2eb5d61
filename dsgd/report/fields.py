"""Read numbers of a run by name: the fields of its summary, and those that follow from them.

The derived fields are means over the whole run. A step is one worker's, with whoever's gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsgd.record.reader import Run, number
from dsgd.report.interval import Estimate, estimate
from dsgd.report.time_to_target import censored_at_s, crossings, end_s, seconds_to_target, target_crossing
from dsgd.report.units import wording


def _resolution_s(run: Run) -> float:
    crossing = target_crossing(run)
    return math.nan if crossing is None else crossing.resolution_s


def _steps(run: Run) -> float:
    """Return the steps of all workers together; of a record without them, as many as there are batches."""
    steps = run.final("worker_steps")
    return sum(steps) if steps else _ratio(number(run.final("samples")), number(run.setting("batch_size")))


def _perplexity(run: Run) -> float:
    """Return that of text; NaN of other data, whose loss is not per token."""
    return _exponential(number(run.final("test_loss"))) if run.chosen("data") == "text" else math.nan


def _exponential(loss: float) -> float:
    """Return exp(loss), infinite where that is no number."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else math.nan


# infinite where a run ended without; the rule by which it would have had them, None: the run's own
CENSORED = {"time_to_target_s": None, "first_crossing_s": "first", "stable_crossing_s": "stable"}

DERIVED: dict[str, Callable[[Run], float]] = {
    "time_to_target_s": lambda run: seconds_to_target(run, target_crossing(run)),
    "first_crossing_s": lambda run: seconds_to_target(run, crossings(run).first),
    "stable_crossing_s": lambda run: seconds_to_target(run, crossings(run).stable),
    "target_resolution_s": _resolution_s,
    "target_censored_at_s": lambda run: number(censored_at_s(run)),
    "test_error": lambda run: 1 - number(run.final("test_accuracy")),
    "test_top5_error": lambda run: 1 - number(run.final("test_top5")),
    "perplexity": _perplexity,
    "samples_per_s": lambda run: _ratio(number(run.final("samples")), number(run.final("time_s"))),
    "step_s": lambda run: _ratio(number(run.final("time_s")) * number(run.nodes), _steps(run)),
    "epoch_s": lambda run: _ratio(number(run.final("time_s")), number(run.final("epochs"))),
    "bytes_sent_per_step": lambda run: _ratio(number(run.final("bytes_sent_total")), _steps(run)),
}
_OF_TABLES: dict[str, Callable[[Run], float]] = {  # which only a table of contenders has
    "bytes_sent_per_node": lambda run: number(run.final("bytes_sent_total")) / (run.nodes or math.nan),
}
LABELS = wording("fields")  # name of a field: what axes and columns call it


def field_value(run: Run, name: str) -> float:
    """Return a field at the end of the run, or so far; NaN if it has none, infinite for a target never reached."""
    derived = DERIVED.get(name) or _OF_TABLES.get(name)
    return number(run.final(name)) if derived is None else derived(run)


def estimate_of(runs: Sequence[Run], name: str, factor: float = 1) -> Estimate:
    """Return median and interval of a field, times a factor; a target that was not reached is censored."""
    ends = [factor * end_of(run, name) for run in runs] if name in CENSORED else None
    return estimate([factor * field_value(run, name) for run in runs], censored=ends)


def end_of(run: Run, name: str) -> float:
    """Return what a field is known to exceed where it is infinite; infinite where nothing is known."""
    return end_s(run, CENSORED[name]) if name in CENSORED else math.inf


def is_rate(name: str) -> bool:
    """Check that a field is something per second, of which more is better."""
    return name.endswith("_per_s")


def is_time(name: str) -> bool:
    """Check that a field is in seconds, of which less is better."""
    return name.endswith("_s") and not is_rate(name)


def mark_value(mark: Mapping[str, Any], name: str) -> float:
    """Return a field of a mark; NaN if it has none."""
    if name in ("test_error", "test_top5_error"):
        return 1 - number(mark.get("test_accuracy" if name == "test_error" else "test_top5"))
    return _exponential(number(mark.get("test_loss"))) if name == "perplexity" else number(mark.get(name))


def field_names(runs: Sequence[Run]) -> list[str]:
    """Return the names of all fields that some run has a number for: the derived ones, then those of the summaries."""
    recorded = dict.fromkeys(name for run in runs for name in (run.summary or (run.metrics or [{}])[-1]))
    names = [*DERIVED, *(name for name in recorded if name not in DERIVED)]
    return [name for name in names if any(not math.isnan(field_value(run, name)) for run in runs)]
