"""Runs in real processes under observation: however one ends, it must leave a whole record and nothing else."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.prefork import Prefork, Run
from tests.support.proc import is_alive, listening, open_files, processes
from tests.support.valid_record import problems

GONE_S = 60.0  # for the kernel to clear away what was killed; a guard
SMALL = (
    "experiment=quadratic",
    "engine=dist",
    "data._target_=tests.support.slow_gradients.SlowGradients",
    "eval.every_steps=10",
)
LIMITS = ("engine.timeout_s=60", "engine.patience_s=0.5")
SILENCE_S = 4.0  # where a test waits until a process is taken for lost; what has to live must not be silent for so long
SILENT = f"engine.timeout_s={SILENCE_S:g}"
STEPS = 300  # of a run that is to come to its end after what happens to it: 9 s, unless its pauses are skipped
BUDGET = f"budget.steps={STEPS}"
LONG = "budget.steps=100000"  # ended by what happens to it

FREE_RUNNING = {
    "gossip": ("algo=gossip",),
    "gossip push": ("algo=gossip", "algo.mode=push"),
    "adpsgd": ("algo=adpsgd",),
    "easgd": ("algo=easgd", "algo.tau=2"),
    "downpour": ("algo=downpour",),
}
LOCKSTEP = {  # one for each way of waiting, of keeping vectors, and of having something under way
    "sync": ("algo=sync",),
    "dpsgd": ("algo=dpsgd",),
    "delayfree": ("algo=delayfree", "algo.tau=4", "eval.every_steps=5"),
    "localsgd": ("algo=localsgd", "algo.tau=3"),
    "sgp": ("algo=sgp", "algo.overlap=2", "topology=star"),
    "easgd in turn": ("algo=easgd", "algo.variant=round_robin", "algo.tau=3"),
}
EXACT = LOCKSTEP | {  # go on exactly where they were
    "compressed": ("algo=compressed", "algo.code=topk", "algo.share=0.5"),
    "corrected": ("algo=corrected", "algo.method=tracking"),
    "diloco": ("algo=diloco", "algo.tau=4", "algo.overlap=eager", "algo.olr=0.3"),  # its average goes out again
    "streaming": ("algo=streaming", "algo.tau=8", "algo.fragments=2", "algo.delay=2"),
    "noloco": ("algo=noloco", "algo.tau=4"),
    "gasloc": ("algo=gasloc", "algo.tau=4", "algo.overlap=1"),  # its exchange goes out again
}
CYCLE = dict.fromkeys(EXACT, 1) | {
    "delayfree": 6,
    "diloco": 12,
    "streaming": 12,
    "gasloc": 12,
}  # samples of three workers
ALGORITHMS = {**FREE_RUNNING, **EXACT}


@dataclass
class WatchedRun:
    """A run, and all its processes and listening sockets observed so far. shared: contents of /dev/shm before it."""

    run: Run
    shared: set[str]
    pids: set[int] = field(default_factory=set)
    sockets: set[str] = field(default_factory=set)

    def observe(self) -> dict[str, int]:
        """Return the current processes by name; remembers them and their listening sockets."""
        found = self.run.processes()
        self.pids |= set(found.values())
        bound = listening()
        for pid in found.values():
            self.sockets |= open_files(pid) & bound.keys()
        return found

    def wait_for_marks(self, marks: int = 3) -> dict[str, int]:
        """Wait until this many marks have been evaluated; returns the processes then."""
        self.run.until(lambda: len(self.run.marks) >= marks)
        return self.observe()

    def assert_ends(self, status: str, code: int) -> None:
        """Wait for the end. The record must be whole and say `status`, and nothing else may be left."""
        assert self.run.wait() == code, self.run.err
        assert self.run.summary["status"] == status, self.run.err
        self.assert_nothing_left()

    def skip_pauses(self) -> None:
        """Let the remaining steps go without pauses, once the fault has happened."""
        self.run.folder.with_suffix(".skip").touch()

    def assert_nothing_left(self) -> None:
        assert problems(self.run.folder) == [], self.run.err
        deadline = time.monotonic() + GONE_S
        while left := self._left():
            assert time.monotonic() < deadline, f"{left} left: {self.run.err}"
            time.sleep(0.02)

    def wait_for_output(self, text: str) -> None:
        """Wait until this text is on the terminal."""
        self.run.until(lambda: text in self.run.err)

    def wait_for_more_marks(self, marks: int = 3) -> None:
        """Wait for that many further marks."""
        wanted = len(self.run.marks) + marks
        self.run.until(lambda: len(self.run.marks) >= wanted)

    def lines_about(self, name: str) -> list[str]:
        """Return the lines on the terminal that name this process."""
        return [line for line in self.run.err.splitlines() if name in line]

    def _left(self) -> list[str]:
        alive = [f"process {pid}" for pid in self.pids if is_alive(pid)]
        folder = f"{self.run.folder}/"
        writing = [f"process {pid}" for pid, _, _ in processes() if any(f.startswith(folder) for f in open_files(pid))]
        ports = [f"port {port}" for found, (_, port) in listening().items() if found in self.sockets]
        shared = [f"/dev/shm/{name}" for name in set(os.listdir("/dev/shm")) - self.shared]
        return alive + writing + ports + shared


def start(prefork: Prefork, folder: Path, *overrides: str) -> WatchedRun:
    """Start a run whose steps take 30 ms or more."""
    shared = set(os.listdir("/dev/shm"))
    skip = f"+data.skip_file='{folder.with_suffix('.skip')}'"
    return WatchedRun(prefork.start(folder, *SMALL, *LIMITS, skip, *overrides), shared)


def undisturbed(prefork: Prefork, folder: Path, *overrides: str) -> WatchedRun:
    """The run to which nothing happens, to its end, without pauses."""
    folder.with_suffix(".skip").touch()
    watched = start(prefork, folder, *overrides)
    watched.assert_ends("completed", 0)
    return watched


def results(marks: list[dict[str, Any]], cycle: int = 1) -> list[tuple[Any, ...]]:
    """What every mark found, apart from when. cycle: samples of a cycle at whose end a mark may find the vectors before
    or after what was under way has come; such marks are left out, but not the last one."""
    comparable = [mark for mark in marks if cycle == 1 or mark["samples"] % cycle or mark is marks[-1]]
    fields = ("samples", "lr", "train_loss", "test_loss", "consensus_distance", "discrepancy")
    return [tuple(mark[field] for field in fields) for mark in comparable]


def resume(prefork: Prefork, watched: WatchedRun) -> WatchedRun:
    """Go on with a run that has ended, without pauses."""
    watched.skip_pauses()
    line = (f"resume={watched.run.folder}", "resume_trusted=true")
    return WatchedRun(prefork.start(watched.run.folder, *line), watched.shared)
