"""Score runs for tuning: by their time to the target, then by their loss."""

from __future__ import annotations

import math

from dsgd.contest.tuning import Outcome
from dsgd.record.reader import Run, number
from dsgd.report.time_to_target import time_to_target_s

LOST = Outcome(math.inf, math.inf)


def outcome(run: Run) -> Outcome:
    """Return what a run of tuning came to; one that diverged or collapsed has lost."""
    if run.outcome != "completed":
        return LOST
    time_s, loss = time_to_target_s(run), number(run.final("test_loss"))
    return Outcome(math.inf if time_s is None else time_s, math.inf if math.isnan(loss) else loss)
