"""Show the last steps of a traced job: when each rank computed, communicated, waited for others and for the host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from dsgd.traces.intervals import Intervals, common, gaps, length, merged, union, without
from dsgd.traces.rank_trace import TracedStep
from dsgd.traces.traced_job import TracedJob

RankRow = tuple[str, dict[str, list[tuple[float, float]]]]  # name of a rank, and its (begin, end) by kind


def traced_timeline(job: TracedJob, count: int = 2) -> list[RankRow]:
    """Return the spans of each rank in the last common steps, on one clock, from the first rank's begin on."""
    steps = {trace.rank: job.steps_of(trace)[-count:] for trace in job.traces}
    transfers = _transfers(job)
    origin_s = min(of_rank[0].begin_s - job.clocks_s[rank] for rank, of_rank in steps.items())
    rows: list[RankRow] = []
    for rank, of_rank in steps.items():
        kinds = _by_kind(of_rank, transfers.get(rank, np.empty((0, 2))))
        shift_s = job.clocks_s[rank] + origin_s
        spans = {kind: [(begin, end) for begin, end in (times - shift_s).tolist()] for kind, times in kinds.items()}
        rows.append((f"rank {rank}", spans))
    return rows


def seconds_by_kind(job: TracedJob) -> dict[str, float]:
    """Return the seconds of each kind in the mean step of the mean rank."""
    transfers, totals, count = _transfers(job), defaultdict[str, float](float), 0
    for trace in job.traces:
        steps = job.steps_of(trace)
        count += len(steps)
        for kind, times in _by_kind(steps, transfers.get(trace.rank, np.empty((0, 2)))).items():
            totals[kind] += length(times)
    return {kind: total_s / count for kind, total_s in totals.items()}


def _transfers(job: TracedJob) -> dict[int, Intervals]:
    """Return by rank the times at the ends of collectives in which bytes move: before them it waits for others."""
    times: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for joint in job.collectives:
        for rank, part in joint.parts.items():
            times[rank].append((part.end_s - joint.transfer_s, part.end_s))
    return {rank: merged(*np.array(spans).T) for rank, spans in times.items()}


def _by_kind(steps: Sequence[TracedStep], transfers: Intervals) -> Mapping[str, Intervals]:
    """Return the times of some steps of a rank by kind. Communication that no kernel and no operator hides is either a
    transfer or waiting; all other gaps wait for the host."""
    busy, waits = union(step.busy for step in steps), union(step.waits for step in steps)
    idle = union(gaps(step.busy, step.begin_s, step.end_s) for step in steps)
    moving = common(waits, transfers)
    kinds = {"compute": busy, "communication": moving, "waiting": without(waits, moving), "host": without(idle, waits)}
    return {kind: times[times[:, 1] > times[:, 0]] for kind, times in kinds.items()}
