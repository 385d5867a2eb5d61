"""Show the progress line: training and host time, samples, loss, accuracy, time remaining."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from dsgd.experiment import Experiment


class ProgressLine:
    """A line on the terminal, in a `with` around the run; prints nothing where stderr is no terminal."""

    def __init__(self, experiment: Experiment, clock: str) -> None:
        """clock: `virtual` or `wall`."""
        self._clock = "virtual" if clock == "virtual" else "of training"
        console = Console(stderr=True)
        self._enabled = console.is_terminal
        self._time_budget = experiment.budget.time_s
        self._samples_budget = experiment.total_samples
        self._progress = Progress(
            TextColumn("{task.fields[line]}"), BarColumn(), TimeRemainingColumn(), console=console, transient=True
        )
        self._measured = ""
        self._task = self._progress.add_task("", total=1.0, line="starting") if self._enabled else None

    def __enter__(self) -> None:
        if self._enabled:
            self._progress.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._enabled:
            self._progress.stop()

    def moved(self, time_s: float, samples: int, wall_s: float) -> None:
        """Show how far the run has come. time_s: of the training clock. wall_s: of the host."""
        if self._task is None:
            return
        done = [time_s / self._time_budget] if self._time_budget else []
        done += [samples / self._samples_budget] if self._samples_budget else []
        line = f"{time_s:.4g} s {self._clock}, {wall_s:.0f} s host, {samples:,} samples{self._measured}"
        self._progress.update(self._task, completed=max(done), line=line)

    def measured(self, mark: Mapping[str, Any]) -> None:
        """Show loss and accuracy of a mark from the next `moved` on."""
        loss, accuracy = mark["test_loss"], mark["test_accuracy"]
        self._measured = "" if loss is None else f", loss {loss:.4g}"
        self._measured += "" if accuracy is None else f", accuracy {accuracy:.2%}"
