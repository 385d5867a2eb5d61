"""Timeline of a run in the Chrome trace format, which Perfetto opens: one row per node."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Span = tuple[float, float]
COLOURS = {"compute": "thread_state_running", "communication": "rail_load", "waiting": "thread_state_iowait"}


@dataclass(frozen=True)
class TraceRow:
    """Timeline of one node. computing, communicating: (begin, end) in seconds of the training clock, in any order."""

    name: str
    computing: list[Span]
    communicating: list[Span]


def trace_text(rows: Sequence[TraceRow], end_s: float) -> Iterator[str]:
    """Yield the pieces of the trace file.

    Times are converted to microseconds, the unit of the format."""
    yield '{"displayTimeUnit": "ms", "traceEvents": [\n'
    separator = ""
    for number, row in enumerate(rows):
        name = {"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": row.name}}
        events: list[dict[str, Any]] = [name]
        for kind, spans in spans_by_kind(row, end_s).items():
            for begin, end in spans:
                span = {"name": kind, "cat": kind, "ph": "X", "pid": 0, "tid": number, "cname": COLOURS[kind]}
                events.append(span | {"ts": begin * 1e6, "dur": (end - begin) * 1e6})
        for event in events:
            yield separator + json.dumps(event)
            separator = ",\n"
    yield "\n]}\n"


def spans_by_kind(row: TraceRow, end_s: float) -> dict[str, list[Span]]:
    """Return the spans of each kind until a time, in order: a node computes, or else its port is busy, or else it
    waits."""
    computing = sorted(span for span in until(end_s, row.computing) if span[1] > span[0])
    communicating = without(merged(until(end_s, row.communicating)), computing)
    waiting = without([(0.0, end_s)], merged(computing + communicating))
    return dict(zip(COLOURS, (computing, communicating, waiting), strict=True))


def until(end_s: float, spans: Sequence[Span]) -> list[Span]:
    """Cut spans off at the end of the run."""
    return [(begin, min(end, end_s)) for begin, end in spans]


def merged(spans: list[Span]) -> list[Span]:
    """Return the union of spans as disjoint spans in order."""
    union: list[Span] = []
    for begin, end in sorted(spans):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        elif end > begin:
            union.append((begin, end))
    return union


def without(spans: list[Span], taken: list[Span]) -> list[Span]:
    """Subtract spans from spans; both must be disjoint and in order."""
    left: list[Span] = []
    index = 0
    for begin, end in spans:
        while index < len(taken) and taken[index][1] <= begin:
            index += 1
        at, ahead = begin, index
        while ahead < len(taken) and taken[ahead][0] < end:
            if taken[ahead][0] > at:
                left.append((at, taken[ahead][0]))
            at = max(at, taken[ahead][1])
            ahead += 1
        if at < end:
            left.append((at, end))
    return left
