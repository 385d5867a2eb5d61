"""Intervals of a trace, as they travel to the coordinator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dsgd.engines.dist.job import TRACE_INTERVALS


def as_vector(kind: str, spans: Sequence[tuple[float, float]], origin_s: float) -> Tensor:
    """Return intervals (begin, end) as float64 [2 n] in seconds since the origin; the first TRACE_INTERVALS of them,
    with a line in this process's log about others. kind: what the line calls them."""
    if len(spans) > TRACE_INTERVALS:
        print(f"the trace holds {TRACE_INTERVALS} of {len(spans)} intervals of {kind}", flush=True)
    return torch.tensor(spans[:TRACE_INTERVALS], dtype=torch.float64).flatten().sub_(origin_s)
