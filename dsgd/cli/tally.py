"""Count the runs of one command, and show their total progress.

On a terminal that is a bar; elsewhere, as in the log of a batch job, a line every EVERY_S.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from dsgd.host.terminal import EVERY_S, bar_console
from dsgd.record.safe_text import counted

LOOK_S = 0.5  # between two checks for changes
FEWEST_TIMED = 3  # runs from which the time that is left follows


@dataclass
class Tally:
    """Counts ended and expected runs, and shows both.

    The expected number may change, for example in a search; the bar never goes back."""

    _part: str = ""  # of the command, said before the numbers: `study 2 of 5`
    _clock: Callable[[], float] = time.monotonic  # in seconds
    _expected: int = 0
    _about: bool = False
    _before: int = 0  # runs that were there already
    _made: int = 0
    _share: float = 0.0
    _running: dict[str, Callable[[], str]] = field(default_factory=dict)  # {label: its progress}
    _used_s: float = 0.0  # while jobs were running
    _resumed_s: float | None = None
    _next_s: float = EVERY_S

    def __post_init__(self) -> None:
        console, changes = bar_console()
        self._bar = Progress(
            BarColumn(24),
            TextColumn("{task.fields[line]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
            transient=True,
            auto_refresh=False,  # no thread, because processes are forked
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("", total=1.0, line="") if changes else None

    def __enter__(self) -> Tally:
        """Show the bar until the end of the block, and then stop the clock."""
        self._resumed_s = self._clock()
        if self._task is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._used_s, self._resumed_s = self.used_s, None
        if self._task is not None:
            self._bar.stop()

    @property
    def ended(self) -> int:
        """Return the number of ended runs, including runs that existed before."""
        return self._before + self._made

    @property
    def used_s(self) -> float:
        """Return the seconds inside of blocks."""
        return self._used_s + (0.0 if self._resumed_s is None else self._clock() - self._resumed_s)

    def expect(self, runs: int, about: bool = False) -> None:
        """Set the number of expected runs, ended ones included. about: True if it is an estimate."""
        self._expected, self._about = runs, about

    def count_before(self, runs: int = 1) -> None:
        """Count runs that need not be made."""
        self._before += runs
        self.show()

    def begin(self, label: str, progress: Callable[[], str]) -> None:
        """Count a run as running. progress: returns its progress, `epoch 3.0, accuracy 0.712`."""
        self._running[label] = progress
        self.show()

    def end(self, label: str) -> None:
        """Count a run as ended."""
        self._running.pop(label, None)
        self._made += 1
        self.show()

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        if self._task is None or self._resumed_s is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self) -> None:
        """Draw the bar, or print a line if it is time."""
        self._share = max(self._share, self.ended / max(self._expected, self.ended, 1))
        if self._task is not None:
            self._bar.update(self._task, completed=self._share, line=self.line())
            self._bar.refresh()
        elif self.used_s >= self._next_s:
            self._next_s = self.used_s + EVERY_S
            print(self.line(), file=sys.stderr, flush=True)

    def line(self) -> str:
        """Return a line like `12 of about 60 runs, 2 min left, running: tuning gossip lr=0.1`."""
        expected = max(self._expected, self.ended)
        parts = [self._part] if self._part else []
        parts.append(f"{self.ended} of {'about ' * self._about}{counted(expected, 'run')}")
        if self._made >= FEWEST_TIMED and expected > self.ended:
            parts.append(f"{duration(self.used_s / self._made * (expected - self.ended))} left")
        names = list(self._running)
        if len(names) == 1 and (progress := self._running[names[0]]()):
            names = [f"{names[0]} ({progress})"]
        return ", ".join(parts) + (f", running: {'; '.join(names)}" if names else "")

    def close(self) -> None:
        """Print the number of runs made, if any."""
        if self._made:
            before = f", {self._before} {'was' if self._before == 1 else 'were'} there before" if self._before else ""
            part = f"{self._part}: " if self._part else ""
            self.print(f"{part}{counted(self._made, 'run')} in {duration(self.used_s)}{before}")


def duration(seconds: float) -> str:
    """Return a time in the one or two units that suit it: `12 s`, `3 min`, `2 h 40 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
