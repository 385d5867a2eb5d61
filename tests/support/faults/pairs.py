"""Two comparisons in one folder, and what happens to one of them: drawn from a number, carried out, and judged.

The folder belongs to one command at a time, so one of the two is refused in one line or comes after the other. Whatever
happens, the line typed once more completes, with the bytes of a comparison that nothing has disturbed.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.command import environment, typed
from tests.support.faults.victims import family, signalled
from tests.support.proc import is_alive

EVERY = 33  # schedules: the last of so many is a pair
ENDS_WITHIN_S = 150.0
LINE = (
    "dsgd-compare algo=sync,gossip model=mlp data=digits nodes=2 budget.epochs=null budget.steps=60 "
    "eval.every_epochs=null eval.every_steps=10 cluster.gradient_s=0.01 target.accuracy=0.5 compare.seeds=2 "
    "'compare.tune={optimizer.lr: [0.05, 0.1]}' --folder it"
)
REFUSAL = "dsgd-compare: --folder must not be in use by another command, got it"
RESULTS = ("contest.csv", "contest.md", "verdict.txt")
FAULTS = {"none": 2, "INT": 2, "TERM": 1, "HUP": 1, "KILL": 3, "STOP KILL": 2}
EXITS = {"INT": 130, "TERM": 130, "HUP": 130, "KILL": -signal.SIGKILL, "STOP KILL": -signal.SIGKILL}
EARLY = {"TERM": -signal.SIGTERM, "HUP": -signal.SIGHUP}  # before the command printed a line: Python was starting


@dataclass(frozen=True)
class Pair:
    """Two commands that type one line. second_s: how long after the first. kind: what happens to the first, fault_s
    after it was typed. Times in seconds."""

    number: int
    second_s: float
    kind: str
    fault_s: float


@dataclass
class PairTrial:
    """A pair that was carried out. ends: the exit statuses of both, and of the line typed once more. problems: what is
    not as it should be."""

    pair: Pair
    ends: list[int | None] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def is_pair(number: int) -> bool:
    return number % EVERY == EVERY - 1


def draw_pair(number: int) -> Pair:
    """Return the pair with this number."""
    rng = random.Random(f"pair {number}")
    (kind,) = rng.choices(list(FAULTS), list(FAULTS.values()))
    return Pair(number, rng.uniform(0, 4), kind, rng.uniform(0.1, 8))


def carry_out_pair(pair: Pair, folder: Path, undisturbed: Path) -> PairTrial:
    """Carry a pair out in a folder, which must not exist. undisturbed: where the same line is typed once, alone."""
    trial = PairTrial(pair)
    if not undisturbed.exists():
        undisturbed.mkdir(parents=True)
        _wait(_start(undisturbed, "alone"), time.monotonic() + ENDS_WITHIN_S)
    folder.mkdir(parents=True)
    begun = time.monotonic()
    seen: set[int] = set()
    first = _start(folder, "first")
    due = [(begun + pair.second_s, "second"), (begun + pair.fault_s, "fault")]
    second: subprocess.Popen[bytes] | None = None
    for moment, event in sorted(due):
        while time.monotonic() < moment:
            seen |= set(family(first.pid).values())
            time.sleep(0.05)
        if event == "second":
            second = _start(folder, "second")
        else:
            _strike(first, pair.kind)
    assert second is not None
    deadline = begun + ENDS_WITHIN_S
    trial.ends = [_wait(first, deadline), _wait(second, deadline)]
    _judge(trial, folder)
    again = _start(folder, "again")
    trial.ends.append(_wait(again, deadline + ENDS_WITHIN_S))
    if trial.ends[-1] != 0:
        trial.problems.append(f"typed once more it ends with status {trial.ends[-1]}")
    for name in RESULTS:
        if _content(folder / "it" / name) != _content(undisturbed / "it" / name):
            trial.problems.append(f"{name} is not that of an undisturbed comparison")
    trial.problems += [
        f"{path.stem}: a traceback on the terminal"
        for path in folder.glob("*.err")
        if b"Traceback" in path.read_bytes()
    ]
    if left := [pid for pid in seen if is_alive(pid)]:
        trial.problems.append(f"left over: {left}")
        for pid in left:
            signalled(pid, signal.SIGKILL)
    if not trial.problems:
        shutil.rmtree(folder)
    return trial


def _start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.err").open("wb") as err:
        return subprocess.Popen(
            typed(LINE), cwd=folder, env=environment(OMP_NUM_THREADS="1"), stdout=subprocess.DEVNULL, stderr=err
        )


def _strike(process: subprocess.Popen[bytes], kind: str) -> None:
    """Do to a command what is due, if it has not ended."""
    for name in kind.split() if kind != "none" else ():
        if process.poll() is None:
            os.kill(process.pid, signal.Signals[f"SIG{name}"])
            time.sleep(2.0 if name == "STOP" else 0)


def _wait(process: subprocess.Popen[bytes], deadline: float) -> int | None:
    """Return the exit status; None of a command that has not ended in time, which is killed."""
    try:
        return process.wait(timeout=max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def _judge(trial: PairTrial, folder: Path) -> None:
    first, second = trial.ends
    struck = {EXITS.get(trial.pair.kind, 0)}
    if not _last_line(folder, "first"):
        struck.add(EARLY.get(trial.pair.kind, 0))
    for name, status, may_be in (("first", first, {0, 2, *struck}), ("second", second, {0, 2})):
        if status not in may_be:
            trial.problems.append(f"{name}: its exit status is {status} ({shlex.join(_last_line(folder, name))})")
        if status == 2 and _last_line(folder, name) != [REFUSAL]:
            trial.problems.append(f"{name}: refused by {shlex.join(_last_line(folder, name))}")
    if trial.pair.kind == "none" and 0 not in trial.ends:
        trial.problems.append("neither of the two has completed")


def _last_line(folder: Path, name: str) -> list[str]:
    return (folder / f"{name}.err").read_text(encoding="utf-8", errors="replace").splitlines()[-1:]


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
