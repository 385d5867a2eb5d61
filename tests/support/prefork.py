"""Runs of dsgd-run in real processes, without waiting for torch to be imported each time.

`python -m tests.support.prefork` imports everything once and then forks a process for every command line that it is
asked to run, which does what a freshly typed command does. `Prefork` is the client's end, for tests.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dsgd.host.fork import fork
from tests.support.proc import processes

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120  # after which a test gives up; nothing is measured with it


@dataclass(frozen=True)
class Run:
    """A run that goes on, or has ended. folder: of its record."""

    prefork: Prefork
    pid: int
    folder: Path

    def poll(self) -> int | None:
        """The exit status, once there is one; minus the signal that ended it."""
        return self.prefork.ask({"poll": self.pid})["status"]

    def wait(self) -> int:
        """The exit status. Kills the run and fails if it does not end."""
        deadline = time.monotonic() + PATIENCE_S
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError(f"it never ended: {self.err}")
            time.sleep(0.02)
        return status

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait until the condition holds. Fails if the run ends before."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.poll() is None, f"it ended too early: {self.err}"
            assert time.monotonic() < deadline, f"it never happened: {self.err}"
            time.sleep(0.005)

    @property
    def out(self) -> str:
        return self.folder.with_suffix(".out").read_text()

    @property
    def err(self) -> str:
        return self.folder.with_suffix(".err").read_text()

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())

    @property
    def devices(self) -> list[str]:
        """The devices that computed, as the record names them."""
        return json.loads((self.folder / "env.json").read_text())["devices"]

    @property
    def marks(self) -> list[dict[str, Any]]:
        metrics = self.folder / "metrics.jsonl"
        whole = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
        return [json.loads(line) for line in whole]

    def processes(self) -> dict[str, int]:
        """Process ids of the run's children that are alive, by name: `worker 2`, `server 0`, `coordinator`."""
        return {name: pid for pid, name, parent in processes() if parent == self.pid}


class Command:
    """A command that goes on, or has ended: what tests use of subprocess.Popen."""

    def __init__(self, prefork: Prefork, pid: int, args: Sequence[str], ends: tuple[Path, Path]) -> None:
        """ends: where its output and its errors go."""
        self._prefork, self._ends = prefork, ends
        self.pid, self.args = pid, list(args)
        self.returncode: int | Any = None  # as of Popen

    def poll(self) -> int | None:
        """The exit status, once there is one; minus the signal that ended it."""
        if self.returncode is None:
            self.returncode = self._prefork.ask({"poll": self.pid})["status"]
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = PATIENCE_S) -> tuple[str, str]:
        """Wait for the end; return output and errors. Kills the command and fails if it does not end."""
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"{self.args} never ended: {self._read()}")
            time.sleep(0.01)
        return self._read()

    def _read(self) -> tuple[str, str]:
        out, err = self._ends
        return out.read_text(), err.read_text()


class Prefork:
    """Starts the forking process and sends it command lines. before: the command that starts it in its turn."""

    def __init__(self, before: Sequence[str] = ()) -> None:
        self._ends, self._commands = tempfile.TemporaryDirectory(), 0
        pipe = subprocess.PIPE
        line = [*before, sys.executable, "-m", "tests.support.prefork"]
        handler = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as from a terminal, also where nohup started the tests
        self._process = subprocess.Popen(line, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        signal.signal(signal.SIGHUP, handler)

    @property
    def root(self) -> Path:
        """The root of the file systems that its processes see."""
        return Path(f"/proc/{self._process.pid}/root")

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        return json.loads(self._process.stdout.readline())

    def start(self, folder: Path, *arguments: str, **environment: str) -> Run:
        """Type `dsgd-run` with these arguments, its record in `folder`."""
        arguments = (*arguments, f"hydra.run.dir={folder}")
        pid = self.ask({"arguments": arguments, "folder": str(folder), "environment": environment})["pid"]
        return Run(self, pid, folder)

    def run(self, folder: Path, *arguments: str, **environment: str) -> Run:
        """The same, to its end."""
        run = self.start(folder, *arguments, **environment)
        run.wait()
        return run

    def command(self, line: Sequence[str], folder: Path, environment: dict[str, str]) -> Command:
        """Type a command in a folder, in this environment."""
        self._commands += 1
        out, err = (Path(self._ends.name) / f"{self._commands}.{name}" for name in ("out", "err"))
        ends = [str(out), str(err)]
        question = {"line": list(line), "folder": str(folder), "environment": environment, "ends": ends}
        return Command(self, self.ask(question)["pid"], line, (out, err))

    def end(self) -> None:
        """Kill the runs that a failed test has left."""
        self.ask({"end": True})

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()
        self._ends.cleanup()


def perform(arguments: Sequence[str], folder: Path, environment: dict[str, str]) -> int:
    """In the forked process: what the command would do."""
    from dsgd.cli.run import main
    from dsgd.host.signals import end_with_parent

    redirect(*(folder.with_suffix(suffix) for suffix in (".out", ".err")))
    end_with_parent(os.getppid(), signal.SIGKILL)
    os.setsid()
    os.environ.update(environment)
    sys.argv = ["dsgd-run", *arguments]
    return main()


def perform_command(line: Sequence[str], folder: str, environment: dict[str, str], ends: Sequence[str]) -> int:
    """In the forked process: what a command would do that is typed in a folder."""
    from dsgd.cli import commands
    from dsgd.host.signals import end_with_parent

    redirect(*map(Path, ends))
    end_with_parent(os.getppid(), signal.SIGKILL)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path.remove(str(ROOT))
    sys.path[:0] = map(os.path.abspath, filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)))
    sys.argv = list(line)
    try:
        return getattr(commands, Path(line[0]).name.removeprefix("dsgd-"))()
    finally:
        atexit._run_exitfuncs()  # a forked process ends without them


def redirect(out: Path, err: Path) -> None:
    """Read from nothing, write into these files."""
    for number, path, flags in ((0, Path(os.devnull), os.O_RDONLY), (1, out, os.O_WRONLY), (2, err, os.O_WRONLY)):
        file = os.open(path, flags | (os.O_CREAT | os.O_TRUNC if number else 0), 0o644)
        os.dup2(file, number)
        os.close(file)


def serve() -> None:
    """Fork for every line of standard input, until it ends."""
    import matplotlib.figure  # noqa: F401
    import torch

    import dsgd.cli.commands
    import dsgd.cli.local_sweep
    import dsgd.engines.dist.distributed
    import dsgd.engines.sim.simulated  # noqa: F401

    torch.set_num_threads(1)  # no pool of threads may exist when a process forks
    ended: dict[int, int] = {}
    started: list[int] = []
    for line in sys.stdin:
        question = json.loads(line)
        if "end" in question:
            for pid in started:
                if pid not in ended:
                    os.kill(pid, signal.SIGKILL)  # its processes die with it
                    os.waitpid(pid, 0)
            started.clear()
            print("{}", flush=True)
            continue
        if "poll" in question:
            pid = question["poll"]
            if pid not in ended:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    ended[pid] = os.waitstatus_to_exitcode(status)
            print(json.dumps({"status": ended.get(pid)}), flush=True)
            continue
        environment = question["environment"]
        if "line" in question:
            do = partial(perform_command, question["line"], question["folder"], environment, question["ends"])
        else:
            do = partial(perform, question["arguments"], Path(question["folder"]), environment)
        # a signal that comes before Python's own preparation of a forked process would be forgotten there
        pid = fork(lambda: None, do)
        ended.pop(pid, None)  # of an earlier process with this number
        started.append(pid)
        print(json.dumps({"pid": pid}), flush=True)


if __name__ == "__main__":
    serve()
