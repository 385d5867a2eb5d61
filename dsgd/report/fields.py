"""Read numbers of a run by name: the fields of its summary, and derived fields, such as the time to its target by each
rule of `dsgd.crossing`.

The other derived fields are means over the whole run. A step is a step of one worker, with any worker's gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dsgd.crossing import WINDOW, Aim, Crossing, Crossings, CurvePoint
from dsgd.record.reader import Run, number
from dsgd.report.interval import CONFIDENCE, NOTHING, Estimate, estimate, paired_ratio

EARLIER_RULE = "stable"  # of records that were made before there was a choice


def _steps(run: Run) -> float:
    """Return the steps of all workers together; of a record without them, as many as there are batches."""
    steps = run.final("worker_steps")
    return sum(steps) if steps else _ratio(number(run.final("samples")), number(run.setting("batch_size")))


def _exponential(loss: float) -> float:
    """Return exp(loss), infinite on overflow."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else math.nan


# infinite if a run ended without them; {field: rule of its crossing, None: the run's own}
CENSORED = {"time_to_target_s": None, "first_crossing_s": "first", "stable_crossing_s": "stable"}

DERIVED: dict[str, Callable[[Run], float]] = {
    "time_to_target_s": lambda run: seconds_to_target(run, target_crossing(run)),
    "first_crossing_s": lambda run: seconds_to_target(run, crossings(run).first),
    "stable_crossing_s": lambda run: seconds_to_target(run, crossings(run).stable),
    "target_resolution_s": lambda run: (
        math.nan if (crossing := target_crossing(run)) is None else crossing.resolution_s
    ),
    "target_censored_at_s": lambda run: number(censored_at_s(run)),
    "test_error": lambda run: 1 - number(run.final("test_accuracy")),
    "test_top5_error": lambda run: 1 - number(run.final("test_top5")),
    # of other data than text the loss is not per token
    "perplexity": lambda run: (
        _exponential(number(run.final("test_loss"))) if run.chosen("data") == "text" else math.nan
    ),
    "samples_per_s": lambda run: _ratio(number(run.final("samples")), number(run.final("time_s"))),
    "step_s": lambda run: _ratio(number(run.final("time_s")) * number(run.nodes), _steps(run)),
    "epoch_s": lambda run: _ratio(number(run.final("time_s")), number(run.final("epochs"))),
    "bytes_sent_per_step": lambda run: _ratio(number(run.final("bytes_sent_total")), _steps(run)),
}
_OF_TABLES: dict[str, Callable[[Run], float]] = {  # which only a table of contenders has
    "bytes_sent_per_node": lambda run: number(run.final("bytes_sent_total")) / (run.nodes or math.nan),
}
# name of a field of runs or of their marks: what axes and columns call it
LABELS: Mapping[str, str] = {
    "time_to_target_s": "time to target (s)",
    "first_crossing_s": "first crossing of the target (s)",
    "stable_crossing_s": "stable crossing of the target (s)",
    "target_censored_at_s": "end of a run that did not reach its target (s)",
    "target_resolution_s": "distance of marks at the target (s)",
    "train_loss": "training loss",
    "test_loss": "test loss",
    "test_loss_deviation": "deviation of a sample's test loss",
    "test_accuracy": "test accuracy",
    "test_error": "test error",
    "test_top5": "test top-5 accuracy",
    "test_top5_error": "test top-5 error",
    "perplexity": "test perplexity",
    "samples_per_s": "samples per second, all nodes",
    "step_s": "time of a step (s)",
    "epoch_s": "time of an epoch (s)",
    "time_s": "time of the run (s)",
    "idle_fraction_mean": "idle share, mean of nodes",
    "idle_fraction_max": "idle share, most idle node",
    "bytes_sent_per_step": "bytes sent per step and worker",
    "bytes_sent_total": "bytes sent by all nodes",
    "bytes_sent_max_node": "bytes sent by the busiest node",
    "bytes_sent_max_server": "bytes sent by the busiest server",
    "bytes_received_total": "bytes received by all nodes",
    "bytes_received_max_node": "bytes received by the busiest node",
    "bytes_received_max_server": "bytes received by the busiest server",
    "bytes_between_islands": "bytes sent between islands",
    "mean_drift": "drift of what is conserved, relative",
    "pairwise_distance_median": "pairwise distance\n" r"median $\|x_i - x_j\|$",
    "discrepancy": "discrepancy\n" r"largest $\|x_i - x_j\|$",
    "consensus_distance": "consensus distance\n" r"rms $\|x_i - \bar{x}\|$",
}


def field_value(run: Run, name: str) -> float:
    """Return a field at the end of the run, or so far; NaN if it has none, infinite for a target never reached."""
    derived = DERIVED.get(name) or _OF_TABLES.get(name)
    return number(run.final(name)) if derived is None else derived(run)


def estimate_of(runs: Sequence[Run], name: str, factor: float = 1) -> Estimate:
    """Return median and interval of a field, times a factor; a target that was not reached is censored."""
    ends = [factor * end_of(run, name) for run in runs] if name in CENSORED else None
    return estimate([factor * field_value(run, name) for run in runs], censored=ends)


def time_ratio(runs: Sequence[Run], reference: Sequence[Run], name: str = "time_to_target_s") -> Estimate:
    """Return the ratio of a field of runs, a time or a rate, to the field of reference runs with the same seed; NaN
    without a common seed. Runs that share a seed are paired in their order. Runs without a number yet are omitted."""
    pairs = [pair for pair in by_seed(runs, reference) if not any(math.isnan(field_value(run, name)) for run in pair)]
    if not pairs:
        return NOTHING
    values, references = ([field_value(pair[i], name) for pair in pairs] for i in (0, 1))
    ends, reference_ends = ([end_of(pair[i], name) for pair in pairs] for i in (0, 1))
    return paired_ratio(values, references, CONFIDENCE, ends, reference_ends)


def by_seed(runs: Sequence[Run], reference: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Return the pairs of runs with the same seed. Several runs with one seed are paired in their order."""
    left = list(reference)
    pairs = []
    for run in runs:
        other = next((other for other in left if other.setting("seed") == run.setting("seed")), None)
        if other is not None:
            left.remove(other)
            pairs.append((run, other))
    return pairs


def end_of(run: Run, name: str) -> float:
    """Return the lower bound of a censored (infinite) field; infinite if unknown."""
    return end_s(run, CENSORED[name]) if name in CENSORED else math.inf


def is_rate(name: str) -> bool:
    """Check that a field is a rate per second, so more is better."""
    return name.endswith("_per_s")


def is_time(name: str) -> bool:
    """Check that a field is in seconds, so less is better."""
    return name.endswith("_s") and not is_rate(name)


def mark_value(mark: Mapping[str, Any], name: str) -> float:
    """Return a field of a mark; NaN if it has none."""
    if name in ("test_error", "test_top5_error"):
        return 1 - number(mark.get("test_accuracy" if name == "test_error" else "test_top5"))
    return _exponential(number(mark.get("test_loss"))) if name == "perplexity" else number(mark.get(name))


def field_names(runs: Sequence[Run]) -> list[str]:
    """Return the names of all fields that some run has a number for: derived fields, then fields of the summaries."""
    recorded = dict.fromkeys(name for run in runs for name in (run.summary or (run.metrics or [{}])[-1]))
    names = [*DERIVED, *(name for name in recorded if name not in DERIVED)]
    return [name for name in names if any(not math.isnan(field_value(run, name)) for run in runs)]


def crossings(run: Run, level: float | None = None) -> Crossings:
    """Return the crossings of the run's target; marks without a number are omitted. level: level instead of the
    target's.

    A run that diverged or collapsed has only `first`, the first crossing of its curve."""
    aim = aim_of(run)
    if aim is None:
        return Crossings(None, None, None)
    if level is not None:
        aim = replace(aim, level=level)
    marks = [(number(mark.get("time_s")), number(mark.get(aim.field))) for mark in run.metrics]
    known: list[CurvePoint] = [mark for mark in marks if not math.isnan(sum(mark))]
    reached = aim.crossings_of(known)
    return reached if _counts(run) else Crossings(None, reached.first, None)


def target_crossing(run: Run, rule: str | None = None) -> Crossing | None:
    """Return the crossing at which the run reached its target; None if it did not, and if it diverged or collapsed.

    rule: one of `dsgd.crossing.RULES`; None: the run's own, `target.crossing`."""
    return crossings(run).by(rule or rule_of(run)) if _counts(run) else None


def time_to_target_s(run: Run, rule: str | None = None) -> float | None:
    """Return the seconds of the run's clock until `target_crossing`, or None."""
    crossing = target_crossing(run, rule)
    return None if crossing is None else crossing.time_s


def censored_at_s(run: Run, rule: str | None = None) -> float | None:
    """Return the duration of a run that ended before it reached its target: a lower bound of its time to target. None
    if it has reached it, has none, is still running, or diverged or collapsed, because more time would not help."""
    over = run.status != "running" and _counts(run)
    if not over or run.target is None or target_crossing(run, rule) is not None:
        return None
    time_s = number(run.final("time_s"))
    return None if math.isnan(time_s) else time_s


def seconds_to_target(run: Run, crossing: Crossing | None) -> float:
    """Return the seconds to a crossing of the run's target; infinite if the run has ended without one, NaN if it is
    running."""
    if crossing is not None:
        return crossing.time_s
    return math.nan if run.target is None or run.status == "running" else math.inf


def end_s(run: Run, rule: str | None = None) -> float:
    """Return the lower bound of a run's time to target if it did not reach it; infinite if it never will."""
    end = censored_at_s(run, rule)
    return math.inf if end is None else end


def rule_of(run: Run) -> str:
    """Return the rule of the run's crossing."""
    return str(run.setting("target.crossing") or EARLIER_RULE)


def rule_text(runs: Sequence[Run]) -> str:
    """Return the rule of the runs' crossings as text: `by the median of 3 marks in a row`."""
    texts = []
    for run in runs:
        if (aim := aim_of(run)) is not None:
            smoothed = f"by the median of {aim.window} marks in a row" if aim.window > 1 else "for the first time"
            texts.append({"smoothed": smoothed, "first": "for the first time", "stable": "for good"}[aim.rule])
    return " or ".join(dict.fromkeys(texts))


def ends_unsmoothed(run: Run) -> bool:
    """Check that a run has missed its target although its last mark is at it: too few marks for the smoothed curve."""
    aim = aim_of(run)
    if aim is None or not run.metrics or censored_at_s(run) is None:
        return False
    return aim.is_reached(number(run.metrics[-1].get(aim.field)))


def unsmoothed_note(runs: Sequence[Run]) -> str:
    """Return a note on the runs that `ends_unsmoothed`, with advice; empty without such runs."""
    if not (some := [run for run in runs if ends_unsmoothed(run)]):
        return ""
    counts = sorted({len(run.metrics) for run in some})
    marks = f"{counts[0]} marks" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} marks"
    end = "1 run ends" if len(some) == 1 else f"{len(some)} runs end"
    return (
        f"{end} at the target without having reached it {rule_text(some)}: {marks} are too few; "
        "evaluate more often (eval.every_time_s, eval.every_steps) or set target.crossing=first"
    )


def _counts(run: Run) -> bool:
    return run.outcome not in ("diverged", "collapsed")


def aim_of(run: Run) -> Aim | None:
    """Return the aim of the run, None without a target. Raises ValueError for an unknown rule."""
    if run.target is None or run.target_field is None:
        return None
    window = run.setting("target.window")
    try:
        return Aim(run.target_field, run.target, rule_of(run), WINDOW if window is None else window)
    except ValueError as error:
        raise ValueError(f"{run.folder}: target.{error}") from error
