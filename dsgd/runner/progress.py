"""Show the progress of a run: one changing line on a terminal, elsewhere a line for some evaluations."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from dsgd.experiment import Experiment
from dsgd.host.terminal import bar_console
from dsgd.record.safe_text import for_terminal, plain_number

EVERY_S = 30.0  # of host time, between two lines of a log


class ProgressLine:
    """A line on the terminal, in a `with` around the run. Where stderr is no terminal, as in the log of a batch job,
    a line for the first mark and for the last one, and between them one every EVERY_S at most.

    on_terminal: whether there is one."""

    def __init__(self, experiment: Experiment, name: str, clock: str, logged: bool = True) -> None:
        """name: of the algorithm. clock: `virtual` or `wall`. logged: where there is no terminal, print lines."""
        self._name = for_terminal(name)
        self._clock = "virtual" if clock == "virtual" else "of training"
        console, self.on_terminal = bar_console()
        self._logged = logged and not self.on_terminal
        self._time_budget = experiment.budget.time_s
        self._samples_budget = experiment.total_samples
        self._epoch_samples = experiment.epoch_samples
        self._progress = Progress(
            TextColumn("{task.fields[line]}"), BarColumn(), TimeRemainingColumn(), console=console, transient=True
        )
        self._measured = ""
        self._task = self._progress.add_task("", total=1.0, line="starting") if self.on_terminal else None
        self._waiting = ""  # the line of a mark that came too soon after another
        self._next_s = 0.0  # host time from which on a line may be printed

    def __enter__(self) -> None:
        if self.on_terminal:
            self._progress.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.on_terminal:
            self._progress.stop()
        if self._waiting:
            print(self._waiting, file=sys.stderr, flush=True)

    def moved(self, time_s: float, samples: int, wall_s: float) -> None:
        """Show how far the run has come. time_s: of the training clock. wall_s: of the host."""
        if self._task is None:
            return
        done = [time_s / self._time_budget] if self._time_budget else []
        done += [samples / self._samples_budget] if self._samples_budget else []
        line = f"{time_s:.4g} s {self._clock}, {wall_s:.0f} s host, {samples:,} samples{self._measured}"
        self._progress.update(self._task, completed=max(done), line=line)

    def measured(self, mark: Mapping[str, Any], wall_s: float) -> None:
        """Show loss and accuracy of a mark: on a terminal from the next `moved` on, elsewhere by a line like
        `gossip: epoch 3.0 of 20, accuracy 0.712, 41 s`. wall_s: of the host, so far."""
        loss, accuracy = mark["test_loss"], mark["test_accuracy"]
        self._measured = "" if loss is None else f", loss {loss:.4g}"
        self._measured += "" if accuracy is None else f", accuracy {accuracy:.2%}"
        if not self._logged:
            return
        parts = [f"epoch {mark['epoch']:.1f}"]
        if self._samples_budget:
            epochs = self._samples_budget / self._epoch_samples
            parts[0] += f" of {epochs:.3g}" if epochs < 100 else f" of {epochs:,.0f}"
        if self._time_budget:
            parts.append(f"{mark['time_s']:.4g} of {plain_number(self._time_budget)} s {self._clock}")
        if accuracy is not None:
            parts.append(f"accuracy {accuracy:.3f}")
        elif loss is not None:
            parts.append(f"loss {loss:.4g}")
        self._waiting = f"{self._name}: {', '.join(parts)}, {wall_s:.0f} s"
        if wall_s >= self._next_s:
            print(self._waiting, file=sys.stderr, flush=True)
            self._waiting, self._next_s = "", wall_s + EVERY_S
