"""The phases of a run, from its start to the status with which it ends."""

from __future__ import annotations

import time

from dsgd.engines.dist.coordinator.snapshots import RunTotals


class RunPhase:
    """Keeps the phase of a run, its training clock, and how it ended. `conclude`, `settle` and what only reads are for
    the thread that evaluates marks, the rest for the one that listens.

    name: starting, training, ending (the last mark is requested), over. status: running, then completed | diverged |
    interrupted | failed. error: one line, for failed. verdict: the status with which a mark ends the run.
    """

    def __init__(self, start_s: float) -> None:
        """start_s: of the training clock, where this process begins."""
        self.name = "starting"
        self.status, self.error = "running", ""
        self.verdict: str | None = None
        self._start_s = start_s
        self._time_origin = 0.0  # time.monotonic() at 0 s of the training clock
        self._end_s: float | None = None
        self._ends_as = "completed"  # or diverged, with the mark at the end
        self._ended_with: RunTotals | None = None  # the last mark, or the checkpoint that ends the run
        self._concluded_with: RunTotals | None = None  # the mark of the verdict

    @property
    def is_over(self) -> bool:
        """Whether the status is known, and no member needed any more."""
        return self.name == "over"

    @property
    def time_s(self) -> float:
        """Seconds on the training clock; at the end, those of the whole run."""
        if self._end_s is not None:
            return self._end_s
        return time.monotonic() - self._time_origin if self.name in ("training", "ending") else self._start_s

    @property
    def totals(self) -> RunTotals | None:
        """What the run came to at what ended it, a mark or a checkpoint; None if nothing did."""
        if self.status == self.verdict and self._concluded_with is not None:
            return self._concluded_with
        return self._ended_with if self.status != "failed" else None

    def train(self) -> None:
        """Start the training clock."""
        self.name = "training"
        self._time_origin = time.monotonic() - self._start_s

    def finish_training(self, time_s: float, ends_as: str = "completed") -> None:
        """Stop the training clock: the run ends with the mark at this time, and with this status."""
        self.name, self._end_s, self._ends_as = "ending", time_s, ends_as

    def conclude(self, status: str, totals: RunTotals) -> None:
        """End the run, soon, with the status that a mark has shown."""
        self._concluded_with = totals
        self.verdict = status

    def end_as_concluded(self) -> bool:
        """End the run if a mark has shown with which status. Return whether it did."""
        if self.verdict is None or self._concluded_with is None:
            return False
        self._end_s = self._concluded_with.counters.time_s
        self.end(self.verdict)
        return True

    def end_with(self, totals: RunTotals, status: str | None = None) -> None:
        """End the run with a mark or a checkpoint. status: None: the one with which its training was finished."""
        self._ended_with = totals
        self.end(self._ends_as if status is None else status)

    def end(self, status: str, error: str = "") -> None:
        """End the run, unless it is over."""
        if not self.is_over:
            self._end_s = self.time_s
            self.status, self.error, self.name = status, error, "over"

    def settle(self) -> None:
        """Give way to the verdict of a mark that lies before the end, but was evaluated after it."""
        if self.status in ("completed", "diverged") and self.verdict is not None:
            self.status = self.verdict
