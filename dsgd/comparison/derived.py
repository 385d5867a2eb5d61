"""Runs under other conditions, without gradients: the marks of a measured run at the times of a timing-only one.

Where every step waits for all workers, the same samples give the same parameters on any cluster. Lock-step alone is not
enough: a mark may find fast workers some steps ahead of slow ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dsgd.record.reader import Run
from dsgd.report.fields import censored_at_s, crossings, target_crossing, time_to_target_s

WAITS = ("idle_fraction_mean", "idle_fraction_max")


def can_derive(measured: Run, barrier: bool, keys: list[str]) -> bool:
    """Return whether other conditions change nothing but the times of a simulated run.

    barrier: of the algorithm. keys: of the conditions. A run that its time has ended before it reached the target could
    have reached it."""
    timed_out = measured.setting("budget.time_s") is not None and time_to_target_s(measured) is None
    only_times = all(key.startswith("cluster.") or key == "cluster" for key in keys)
    return barrier and only_times and measured.clock == "virtual" and not timed_out


def derived(measured: Run, timing: Run) -> Run:
    """Return the run that a timing-only one stands for: with the marks of the measured one, as far as it came."""
    samples, seconds = ([float(mark[name]) for mark in timing.metrics] for name in ("samples", "time_s"))
    marks: list[dict[str, Any]] = [
        {**mark, "time_s": float(np.interp(mark["samples"], samples, seconds))}
        for mark in measured.metrics
        if mark["samples"] <= samples[-1]
    ]
    summary = {**(measured.summary or {}), "time_s": marks[-1]["time_s"]}
    run = replace(measured, config=timing.config, metrics=marks, summary=summary)
    reached = crossings(run)
    chosen = target_crossing(run)
    times: dict[str, float | None] = {
        "time_to_target_s": chosen and chosen.time_s,
        "target_resolution_s": chosen and chosen.resolution_s,
        "target_censored_at_s": censored_at_s(run),
        "first_crossing_s": reached.first and reached.first.time_s,
        "stable_crossing_s": reached.stable and reached.stable.time_s,
        **{name: (timing.summary or {}).get(name) for name in WAITS},
    }
    return replace(run, summary=summary | {name: value for name, value in times.items() if name in summary})
