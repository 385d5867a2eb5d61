"""Tests in forked processes, with a changed file in the place of a file of the checkout: for `mutations.py`.

Needs Linux and root. The changed file is mounted over the other one, for the tests and their processes alone: so the
checkout stays as it is, several changes can be tested at a time, and commands that a test starts see the change.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

IMPORTED = ("torch", "numpy", "pytest", "hydra", "omegaconf", "msgspec", "networkx", "nacl.public", "PIL.Image", "yaml")
IMPORTED += ("hypothesis", "matplotlib.pyplot", "pandas", "rich.console", "torch.distributed", "torch.func")
MEMORY = 8 << 30  # bytes of a process of tests
CLONE_NEWNS, MS_BIND, MS_PRIVATE, MS_REC = 0x20000, 1 << 12, 1 << 18, 1 << 14
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True)
class Outcome:
    """What a run of tests came to. failed: the first test that failed, and why. seconds: of processors, by test."""

    failed: tuple[str, str] | None
    seconds: dict[str, float]


class Watch:
    """A plugin of pytest that writes what happens into a pipe. only: the tests to keep; all if empty."""

    def __init__(self, pipe: int, only: frozenset[str]) -> None:
        self._pipe, self._only, self._process, self._begun_s = pipe, only, os.getpid(), 0.0

    def _write(self, kind: str, test: str, value: object = None) -> None:
        if os.getpid() == self._process:
            os.write(self._pipe, json.dumps([kind, test, value]).encode() + b"\n")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if not self._only or item.nodeid in self._only]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._write("failed", report.nodeid, str(report.longrepr)[-300:])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begun_s = sum(os.times()[:4])
        self._write("start", nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._write("failed", report.nodeid, (crash.message if crash else str(report.longrepr))[:300])
        elif report.when == "teardown":
            self._write("done", report.nodeid, round(sum(os.times()[:4]) - self._begun_s, 2))


@dataclass(frozen=True)
class Runner:
    """Runs tests of a checkout. limit_s: of a test. options: further ones of pytest."""

    tree: Path
    limit_s: float
    options: tuple[str, ...]

    def __post_init__(self) -> None:
        """Import what tests import, but for the package and the tests: all processes are forked off this one."""
        sys.path[0] = str(self.tree)
        os.environ["OMP_NUM_THREADS"] = "1"
        spec = importlib.util.find_spec("dsgd")
        if spec is None or spec.origin is None or Path(spec.origin) != self.tree / "dsgd" / "__init__.py":
            raise SystemExit(f"start with the Python of {self.tree}")
        for module in IMPORTED:
            with suppress(ImportError):
                importlib.import_module(module)

    def run(
        self, files: Sequence[str], only: Sequence[str] = (), over: tuple[Path, Path] | None = None, first: bool = True
    ) -> Outcome:
        """Run files of tests, with a file or folder mounted over another one. first: stop at the first that fails."""
        pipe, other_end = os.pipe()
        scratch = Path(tempfile.mkdtemp(prefix="m", dir="/tmp"))  # short, for the names of sockets
        if not (child := os.fork()):
            try:
                os._exit(self._child([*files, *["-x"][:first]], Watch(other_end, frozenset(only)), over, scratch))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(99)
        os.close(other_end)
        try:
            return self._watch(child, pipe, first)
        finally:
            _end_children()
            os.close(pipe)
            shutil.rmtree(scratch, ignore_errors=True)

    def _child(self, arguments: list[str], watch: Watch, over: tuple[Path, Path] | None, scratch: Path) -> int:
        import hypothesis.configuration
        import pytest

        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        watch._process = os.getpid()
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(os.open(scratch / "output", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 1)
        os.dup2(1, 2)
        os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
        hypothesis.configuration.set_hypothesis_home_dir(scratch / "hypothesis")
        if over:
            _mount(*over)
        os.chdir(self.tree)
        settings = ["-q", "-p", "no:cacheprovider", "-n", "0", "-W", "ignore:Module already imported"]
        settings += ["--hypothesis-seed=0", f"--basetemp={scratch / 'tests'}"]
        return int(pytest.main([*arguments, *settings, *self.options], plugins=[watch]))

    def _watch(self, child: int, pipe: int, first: bool) -> Outcome:
        status, current, failed, seconds, text = None, "collection", None, dict[str, float](), b""
        since = time.monotonic()
        while status is None and not (failed and first):
            ended, code = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if ended else None
            while select.select([pipe], [], [], 0 if ended else 0.2)[0] and (arrived := os.read(pipe, 1 << 16)):
                *events, text = (text + arrived).split(b"\n")
                for kind, test, value in map(json.loads, events):
                    since, current = time.monotonic(), test
                    if kind == "failed":
                        failed = failed or (test, value)
                    elif kind == "done":
                        seconds[test] = value
            if status is None and time.monotonic() - since > self.limit_s:
                failed, first = failed or (current, f"longer than {self.limit_s:g} s"), True
        if status not in (None, 0, 1, 5):  # 1: a test failed, which was written; 5: there is none
            failed = failed or (current, f"ended with status {status}")
        return Outcome(failed, seconds)


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _mount(source: Path, target: Path) -> None:
    """Mount a file or folder over another one, for this process and its children."""
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.unshare(CLONE_NEWNS)
        or libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_PRIVATE | MS_REC), None)
        or libc.mount(bytes(source), bytes(target), None, ctypes.c_ulong(MS_BIND), None)
    ):
        raise OSError(ctypes.get_errno(), f"cannot mount {source} over {target}: this needs Linux and root")


def _end_children() -> None:
    """Kill the processes that tests have left. They are children of this process as soon as their parents end."""
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for child in map(int, children):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def in_processes(jobs: int, items: Sequence[Any], work: Callable[[Any], None]) -> None:
    """Work on items in several processes, each of which inherits the processes that its tests leave."""
    children = []
    for job in range(jobs):
        if not (child := os.fork()):
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            try:
                for item in items[job::jobs]:
                    work(item)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    if any(statuses):
        raise SystemExit("stopped; type the command again to resume")
