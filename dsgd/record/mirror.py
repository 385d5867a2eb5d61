"""Copy the record of a run to trackers, from its files, each in a separate process.

The record on disk is the truth. If a tracker is absent, without network, broken or stuck, it neither stops nor delays
the run: the run only notifies that process of new lines, and waits for it at the end, for a limited time.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from dsgd.record.reader import read_summary
from dsgd.record.safe_text import for_terminal
from dsgd.record.trackers import Tracker
from dsgd.record.writer import METRICS

WITHOUT_IT = "the run continues without it"
SETTINGS = {"MLFLOW_DISABLE_TELEMETRY": "true"}  # a run sends nothing to third parties unless the user asks for it
PACKAGES = {"wandb": "wandb", "tensorboard": "tensorboard", "mlflow": "mlflow-skinny"}


class Mirror:
    """Starts, wakes and awaits one copying process for each tracker."""

    def __init__(self, waits_s: Mapping[str, float], folder: Path) -> None:
        """Start the copying processes.

        waits_s: {tracker: seconds that `finish` waits for it}. folder: folder of a record that has begun."""
        self._waits_s = waits_s
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in waits_s:
            command = [sys.executable, "-P", "-m", "dsgd.record.mirror", name, str(folder)]
            # in a separate session, which a Ctrl-C at the terminal does not reach
            environment = {**SETTINGS, **os.environ}
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True, env=environment
                )
            except OSError as error:  # no more processes, or no memory
                say(name, f"{error.strerror}: {sys.executable}; {WITHOUT_IT}")
            else:
                self._processes[name] = process
                os.set_blocking(_pipe(process).fileno(), False)

    def wake(self) -> None:
        """Notify the copying processes that the record has new lines. Never blocks."""
        for process in self._processes.values():
            with contextlib.suppress(OSError):  # the pipe is full or broken: it reads the lines at the end, if ever
                _pipe(process).write(b"\n")

    def finish(self) -> None:
        """Wait until everything is copied, for each tracker at most its time. Call it when the summary is written."""
        for process in self._processes.values():
            _pipe(process).close()
        ended_s = time.monotonic()
        try:
            for name, process in self._processes.items():
                self._await(name, process, ended_s)
        finally:  # also after a Ctrl-C
            for process in self._processes.values():
                if process.poll() is None:
                    process.kill()
                    process.wait()

    def _await(self, name: str, process: subprocess.Popen[bytes], ended_s: float) -> None:
        wait_s = self._waits_s[name]
        try:
            status = process.wait(max(0.0, ended_s + wait_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            say(name, f"not done {wait_s:g} s after the run; {WITHOUT_IT}")
        else:
            if status < 0:  # it could not say anything itself
                say(name, f"ended by signal {-status}; {WITHOUT_IT}")


def _pipe(process: subprocess.Popen[bytes]) -> Any:
    return process.stdin


def say(name: str, text: str, stream: TextIO | None = None) -> None:
    """Print one line about a tracker."""
    print(for_terminal(f"{name}: {text}"), file=stream or sys.stderr, flush=True)


def main(name: str, folder: Path) -> str:
    """Copy the record in a folder to a tracker while it grows, until standard input ends.

    Returns a line for the user, or an empty text."""
    tracker: Tracker = importlib.import_module(f"dsgd.record.trackers.{name}").begin(folder)
    for number, line in enumerate(new_lines(folder / METRICS, sys.stdin)):
        if number >= tracker.copied:
            tracker.log(number, _known(json.loads(line)))
    return tracker.end(_known(read_summary(folder) or {"status": "killed"}))


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not null."""
    return {key: value for key, value in fields.items() if value is not None}


def new_lines(path: Path, wakes: TextIO) -> Iterator[bytes]:
    """Yield the whole lines of a file as it grows.

    wakes: any byte means that there may be new lines; its end means that the file is complete."""
    partial_line = b""
    with path.open("rb") as file:
        ended = False
        while not ended:
            ended = not os.read(wakes.fileno(), 4096)
            *whole, partial_line = (partial_line + file.read()).split(b"\n")
            yield from whole


def quiet() -> TextIO:
    """Return the standard error of this process, for its one line. All other output is discarded."""
    kept = os.fdopen(os.dup(2), "w", encoding=sys.stderr.encoding, errors=sys.stderr.errors)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    return kept


def reason(name: str, error: Exception) -> str:
    """Say in a few words why a tracker does not work."""
    if isinstance(error, ModuleNotFoundError) and error.name == name:
        return f"not installed: pip install {PACKAGES[name]}"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


if __name__ == "__main__":
    name, folder = sys.argv[1:]
    stream = quiet()
    try:
        if line := main(name, Path(folder)):
            say(name, line, stream)
    except Exception as error:  # a library may raise anything: one line
        say(name, f"{reason(name, error)}; {WITHOUT_IT}", stream)
        sys.exit(1)
