"""The installed commands, as users type them, in processes of their own; or in this one, where many are wanted."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dsgd.cli.run import main
from dsgd.record.writer import CONFIG_SHA256
from tests.support.prefork import Command, Prefork

SCRIPTS = Path(sys.executable).parent
PATIENCE_S = 300  # after which a test gives up; nothing is measured with it


def typed(line: str) -> list[str]:
    """A command line as the shell splits it, its command taken from the environment of this Python."""
    name, *arguments = shlex.split(line)
    return [str(SCRIPTS / name), *arguments]


def environment(**changes: str) -> dict[str, str]:
    """Of a child process: this one's without what would tell it about a checkout, a terminal or wandb."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith(("WANDB", "COLUMNS"))}
    return kept | changes


def shell(line: str, folder: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Type a line in a folder and wait for its end."""
    process = start(line, folder, **changes)
    out, err = process.communicate(timeout=PATIENCE_S)
    return subprocess.CompletedProcess(typed(line), process.returncode, out, err)


@cache
def imported() -> Prefork:
    """Return a process that commands are forked off, until this one ends."""
    prefork = Prefork()
    atexit.register(prefork.close)
    return prefork


def start(line: str, folder: Path, **changes: str) -> Command | subprocess.Popen[str]:
    """Type a line in a folder and do not wait for its end.

    One of dsgd's commands is forked off a process that has imported torch, which takes most of the time of a short
    command, unless a change of the environment is one that Python or a library reads when it starts."""
    words, variables = typed(line), environment(**changes)
    if Path(words[0]).name.startswith("dsgd-") and not any(map(_is_read_at_start, changes)):
        return imported().command(words, folder, variables)
    pipe = subprocess.PIPE
    return subprocess.Popen(words, cwd=folder, env=variables, stdout=pipe, stderr=pipe, text=True)


def _is_read_at_start(name: str) -> bool:
    return name.startswith(("LC_", "LANG", "MPL", "OMP_", "PYTHON")) and name != "PYTHONPATH"


def wait_until(condition: Callable[[], bool], process: Command | subprocess.Popen[Any]) -> None:
    """Return as soon as the condition holds. Fails if the process ends before, or all patience is gone."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, f"it ended too early: {process.communicate()}"
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def signalled(
    line: str, folder: Path, record: Path, when: Callable[[], bool], *numbers: int, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Type a line in a folder, and send it these signals when the condition holds. If the run was over before, because
    this process was kept waiting, its record is dropped, and it begins again."""
    for _ in range(5):
        process = start(line, folder, **changes)
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None and not when():
            assert time.monotonic() < deadline, "it never happened"
            time.sleep(0.005)
        for number in numbers:
            process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
        if process.returncode != 0:
            return subprocess.CompletedProcess(process.args, process.returncode, out, err)
        shutil.rmtree(record)
    raise AssertionError("it was always over before its signal came")


def on_a_terminal(line: str, folder: Path) -> str:
    """Type a line whose standard error is a terminal, and return what came there."""
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        typed(line), cwd=folder, env=environment(TERM="xterm", COLUMNS="150"), stdout=subprocess.PIPE, stderr=terminal
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            part = os.read(screen, 4096)
        except OSError:  # Linux: the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(screen)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, shown.decode()
    return shown.decode()


@dataclass(frozen=True)
class Result:
    status: int | str | None
    out: str
    err: str


def call(*arguments: str) -> Result:
    """dsgd-run in this process, in its present folder. status: as the process would have ended with."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status: int | str | None = main(arguments)
        except SystemExit as end:
            status = end.code
    return Result(status, out.getvalue(), err.getvalue())


def refusal(*arguments: str) -> str:
    """Return the only line that dsgd-run prints, which ends with status 2."""
    result = call(*arguments)
    assert (result.status, result.out, len(result.err.splitlines())) == (2, "", 1), result
    return result.err


def in_python(program: str, *arguments: str | Path, folder: Path | None = None, **changes: str) -> str:
    """Return what a program prints in a Python that has imported nothing. It must end well."""
    line, variables = [sys.executable, "-c", program, *map(str, arguments)], {**os.environ, **changes}
    ended = subprocess.run(line, cwd=folder, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def lines(folder: Path) -> int:
    """Whole lines of metrics.jsonl so far."""
    metrics = folder / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def marks(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without host time."""
    return [_virtual(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    """The summary without host time, and without the name of the configuration, which has folders in it."""
    return _virtual(json.loads((folder / "summary.json").read_text()))


def _virtual(values: dict[str, Any]) -> dict[str, Any]:
    assert values["wall_s"] >= 0
    return {key: value for key, value in values.items() if key not in ("wall_s", CONFIG_SHA256)}
