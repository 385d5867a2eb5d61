"""Price runs: nodes for a time, and the bytes that they sent by then."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dsgd.record.reader import Run, number

GB = 1e9


@dataclass(frozen=True)
class Prices:
    """What a cluster costs, in any currency. node_hour: a node for an hour. egress_gb: a GB (1e9 bytes) sent."""

    node_hour: float = 0.0
    egress_gb: float = 0.0

    @property
    def text(self) -> str:
        """Return `nodes × hours × 2 + GB sent × 0.09`."""
        parts = [f"nodes × hours × {self.node_hour:g}"] * bool(self.node_hour)
        parts += [f"GB sent × {self.egress_gb:g}"] * bool(self.egress_gb)
        return " + ".join(parts)

    def cost(self, run: Run, seconds: float) -> float:
        """Return the cost of a run until a time of its clock; infinite for ever, NaN where the bytes are not known."""
        if math.isinf(seconds):
            return math.inf
        traffic = bytes_sent_by(run, seconds) / GB * self.egress_gb if self.egress_gb else 0.0
        return number(run.nodes) * seconds / 3600 * self.node_hour + traffic


def bytes_sent_by(run: Run, seconds: float) -> float:
    """Return the bytes that all nodes of a run have sent by a time, on straight lines between its marks; NaN if no mark
    says."""
    marks = [(number(mark.get("time_s")), number(mark.get("bytes_sent"))) for mark in run.metrics]
    known = [mark for mark in marks if not math.isnan(sum(mark))]
    if not known:
        return math.nan
    times, counts = zip(*known, strict=True)
    return float(np.interp(seconds, times, counts))
