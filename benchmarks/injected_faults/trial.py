"""Carry out one schedule of faults on a real run, and judge how it ended."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.injected_faults import damage
from benchmarks.injected_faults.schedules import (
    COMPLETED,
    CYCLE,
    FAILED,
    INTERRUPTED,
    LOST,
    MARK_STEPS,
    MARKS,
    NODES,
    NONE,
    STEPS,
    TIMEOUT_S,
    Fault,
    Schedule,
)  # fmt: skip
from dsgd.record.reader import read_status
from tests.support.faults.victims import cut, family, signalled
from tests.support.prefork import Prefork, Run
from tests.support.proc import is_alive
from tests.support.valid_record import Stored, problems, stored
from tests.support.watched_run import results

ENDS_WITHIN_S = 150.0  # far longer than any run takes that ends at all, on a busy machine, too
GONE_WITHIN_S = 60.0  # for the kernel to clear away what was killed
LOOK_S, COUNT_S = 0.005, 0.2  # between two looks at the marks, at all processes
TO_BE_HEARD_S = 0.2  # before the end of the training, for a fault to change how it ends
ANSWERED_S = 2.0  # the same for a signal, after which all gradients are slow
DISK_BYTES = 1 << 20
EXITS = {COMPLETED: {0}, FAILED: {1}, INTERRUPTED: {130}, LOST: {1, -signal.SIGKILL}}
RECORD = ("metrics.jsonl", "summary.json", "checkpoint.pt")
RUN = (
    "experiment=quadratic",
    "engine=dist",
    "data._target_=tests.support.slow_gradients.SlowGradients",
    "+data.step_s=0.01",
    f"eval.every_steps={MARK_STEPS}",
    f"budget.steps={STEPS}",
)
REFUSALS = ("hydra.run.dir must not be in use by another run", "hydra.run.dir must not hold another run's record")
LIMITS = (f"engine.timeout_s={TIMEOUT_S:g}", "engine.patience_s=0.5")  # of a run that something happens to


@dataclass
class Trial:
    """A schedule that was carried out. ends: how the run ended each time, in the words of the schedule's rules; status:
    its last exit status, None if it hung. happened: the faults that reached their victims. ended_after_s: the last of
    them. found: what is not as the rules say."""

    schedule: Schedule
    ends: list[str] = field(default_factory=list)
    status: int | None = None
    happened: list[Fault] = field(default_factory=list)
    ended_after_s: float | None = None
    found: list[str] = field(default_factory=list)


class Baselines:
    """What undisturbed runs found at their marks, for comparison. Each is made when it is first needed."""

    def __init__(self, prefork: Prefork, folder: Path) -> None:
        self._prefork = prefork
        self._folder = folder
        self._found: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}

    def of(self, schedule: Schedule) -> list[tuple[Any, ...]]:
        options = tuple(text for text in schedule.options if text != "trace=true")
        if options not in self._found:
            folder = self._folder / f"undisturbed{len(self._found)}"
            folder.with_suffix(".skip").touch()
            run = self._prefork.run(folder, *RUN, _skip(folder), *options)
            assert run.poll() == 0, run.err
            self._found[options] = _results(schedule, folder)
        return self._found[options]


@dataclass(frozen=True)
class Moment:
    """When a fault happened. at_s: seconds since the epoch, as of a file. lines: marks there were."""

    at_s: float
    lines: int


def carry_out(schedule: Schedule, folder: Path, prefork: Prefork, baselines: Baselines) -> Trial:
    """Run a schedule with its record in `folder`, which must not exist. Removes what went as it should."""
    trial = Trial(schedule)
    disk = any(fault.victim == "disk" for fault in (*schedule.faults, *schedule.later))
    if disk:
        folder.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], check=True)
    try:
        for faults in (schedule.faults, schedule.later, ()):
            if len(trial.ends) == 1 and schedule.damage is not None and trial.ends[0] != COMPLETED:
                _damaged(trial, schedule.damage, folder, prefork)
            if trial.ends and not faults:
                folder.with_suffix(".skip").touch()  # nothing more happens: no need for pauses
            if not trial.ends or faults or trial.ends[-1] != COMPLETED:
                _live(trial, faults, folder, prefork, baselines)
            if trial.status is None or trial.ends[-1] == COMPLETED:
                break
    finally:
        prefork.end()
        if disk:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    if not trial.found:
        for path in folder.parent.glob(f"{folder.name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return trial


def _skip(folder: Path) -> str:
    return f"+data.skip_file='{folder.with_suffix('.skip')}'"


def _slow(folder: Path) -> str:
    return f"+data.slow_file='{folder.with_suffix('.slow')}'"


def _lines(folder: Path) -> int:
    try:
        return (folder / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def _results(schedule: Schedule, folder: Path) -> list[tuple[Any, ...]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    cycle = CYCLE.get(schedule.algo, 1)
    return results([json.loads(line) for line in lines], cycle * NODES if cycle > 1 else 1)


def _live(trial: Trial, faults: Sequence[Fault], folder: Path, prefork: Prefork, baselines: Baselines) -> None:
    """Start the run, or go on with it, let faults happen to it, and judge how it ends."""
    first = not trial.ends
    before, untouched = (None, []) if first else (stored(folder), _contents(folder))
    if (err := folder.with_suffix(".err")).exists():
        err.rename(folder.with_suffix(f".err{len(trial.ends)}"))
    again = () if first else ("resume=auto",)
    folder.with_suffix(".slow").unlink(missing_ok=True)
    options = (*RUN, *LIMITS, _skip(folder), _slow(folder), *trial.schedule.options, *again)
    run = prefork.start(folder, *options)
    beside: dict[Fault, Run] = {}
    happened = _disturb(trial, faults, run, folder, options, beside)
    for fault, second in beside.items():
        _judge_second(trial, fault, second, run)
    trial.happened += happened.keys()
    (folder / "filler").unlink(missing_ok=True)
    trial.ends.append(NONE if _contents(folder) == untouched else _end(folder))
    if trial.status is not None:
        _judge(trial, happened, folder, baselines, before, "" if first else "after going on: ")


def _damaged(trial: Trial, fault: Fault, folder: Path, prefork: Prefork) -> None:
    """Damage the record of a run that has not come to its end, and try to go on with it. What is refused is refused in
    one line, and nothing is touched; then the record is made whole again."""
    whole = {name: (folder / name).read_bytes() for name in RECORD if (folder / name).exists()}
    if not damage.damage(fault.kind, folder, fault.delay_s):
        return
    trial.happened.append(fault)
    if fault.kind not in damage.REFUSED:
        return
    damaged = _contents(folder)
    options = (*RUN, *LIMITS, _skip(folder), _slow(folder), *trial.schedule.options, "resume=auto")
    refused = _start_beside(prefork, folder, options)
    status, said = refused.wait(), refused.err.splitlines()
    if status != 2 or len(said) != 1 or damage.REFUSED[fault.kind] not in said[0]:
        trial.found.append(f"with its record damaged ({fault.kind}) it ends with status {status}: {said[-1:]}")
    if _contents(folder) != damaged:
        trial.found.append(f"a damaged record ({fault.kind}) is touched")
    for name, content in whole.items():
        (folder / name).write_bytes(content)


def _start_beside(prefork: Prefork, folder: Path, options: Sequence[str]) -> Run:
    """Type another command for the same folder; what it prints is in files of its own."""
    beside = folder.with_name(f"{folder.name}-beside")
    question = {"arguments": (*options, f"hydra.run.dir={folder}"), "folder": str(beside), "environment": {}}
    return Run(prefork, prefork.ask(question)["pid"], beside)


def _judge_second(trial: Trial, fault: Fault, second: Run, first: Run) -> None:
    """One of two commands makes the run, the other is refused, or finds nothing to do."""
    status = second.wait()
    if trial.status == 2 and fault.kind == "at once":  # the second was faster
        status, trial.status, said = trial.status, status, first.err
    else:
        said = second.err
    refused = status == 2 and said.count("\n") == 1 and said.startswith(REFUSALS)
    ended = status == 0 and "nothing to do" in said and "resume=auto" in _words(fault, trial)
    if not refused and not ended:
        trial.found.append(f"a second command ({fault.kind}) ends with status {status}: {said.splitlines()[-1:]}")


def _words(fault: Fault, trial: Trial) -> tuple[str, ...]:
    """Return what is typed besides for a second command."""
    return ("resume=auto",) if fault.kind == "resume" or fault in trial.schedule.later else ()


def _disturb(
    trial: Trial, faults: Sequence[Fault], run: Run, folder: Path, options: Sequence[str], beside: dict[Fault, Run]
) -> dict[Fault, Moment]:
    """Let the faults happen when they are due, and wait for the end. Nothing may be left.

    Returns those that did. options: of the command. beside: gets the second commands."""
    begun = time.monotonic()
    due: dict[Fault, float] = {}
    happened: dict[Fault, Moment] = {}
    wakes: list[tuple[float, int]] = []
    seen: set[int] = set()
    counted = 0.0
    last_s = None
    while (status := run.poll()) is None:
        now = time.monotonic()
        if now > begun + ENDS_WITHIN_S:
            trial.found.append(f"it has not ended after {ENDS_WITHIN_S:g} s")
            break
        if now > counted + COUNT_S:
            counted = now
            seen |= set(family(run.pid).values())
        if trial.schedule.damage is not None and trial.schedule.damage.kind == "earlier checkpoint":
            damage.keep(folder)
        lines = _lines(folder)
        for fault in faults:
            if fault not in due and lines > {"start": -1, "marks": fault.marks, "end": MARKS}[fault.phase]:
                due[fault] = (begun if fault.phase == "start" else now) + fault.delay_s
            if fault in due and now >= due[fault] and fault not in happened:
                found = family(run.pid)
                seen |= set(found.values())
                if fault.victim == "second":
                    beside[fault] = _start_beside(run.prefork, folder, (*options, *_words(fault, trial)))
                if fault.victim == "second" or _happens(fault, run.pid, found, folder, wakes):
                    last_s = time.monotonic()
                    happened[fault] = Moment(time.time(), lines)
        for wake in [wake for wake in wakes if now >= wake[0]]:
            wakes.remove(wake)
            signalled(wake[1], signal.SIGCONT)
        time.sleep(LOOK_S)
    trial.status = status
    if status is None:
        signalled(run.pid, signal.SIGKILL)
    trial.ended_after_s = None if last_s is None else time.monotonic() - last_s
    if left := _left(seen):
        trial.found.append(f"left over: {left}")
        for pid in left:
            signalled(pid, signal.SIGKILL)
    return happened


def _late(happened: Mapping[Fault, Moment], folder: Path) -> set[Fault]:
    """Return the faults that came when the training was over, or so soon before that nobody could hear of it: by the
    last gradient that a worker began, since a busy machine shows the marks late, or by the marks that were there."""
    last_s = max(path.stat().st_mtime for path in folder.parent.glob(f"{folder.name}.skip.*"))
    heard_s = {fault: ANSWERED_S if fault.victim == "signals" else TO_BE_HEARD_S for fault in happened}
    return {fault for fault, at in happened.items() if at.at_s > last_s - heard_s[fault] or at.lines >= MARKS - 1}


def _happens(fault: Fault, command: int, found: dict[str, int], folder: Path, wakes: list[tuple[float, int]]) -> bool:
    """Do to the victim what is due; False if it is not there, yet or any more."""
    if fault.victim == "disk":
        return _fill(folder)
    if fault.victim == "signals":
        folder.with_suffix(".slow").touch()  # a busy machine hears a signal late: the run must not end before
        sent = [signalled(command, number) for number in fault.numbers]
        return all(sent)
    pid = command if fault.victim == "command" else found.get(fault.name)
    if pid is None:
        return False
    if fault.kind.startswith("cut"):
        return "coordinator" in found and cut(pid, fault.kind.removeprefix("cut "), found["coordinator"])
    if fault.pause_s:
        wakes.append((time.monotonic() + fault.pause_s, pid))
    return signalled(pid, signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)


def _fill(folder: Path) -> bool:
    """Fill the disk that the record is on."""
    try:
        with (folder / "filler").open("ab", buffering=0) as filler:
            while True:
                filler.write(b"\0" * 4096)
    except OSError:
        return True


def _left(seen: set[int]) -> list[int]:
    """Return the processes that do not go away."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while left := [pid for pid in seen if is_alive(pid)]:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.02)
    return []


def _contents(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in RECORD if (folder / name).exists()]


def _end(folder: Path) -> str:
    """Return how a run has ended, as its record says."""
    if (status := read_status(folder)) is not None:
        return status
    return LOST if (folder / "metrics.jsonl").exists() else NONE


def _judge(
    trial: Trial,
    happened: Mapping[Fault, Moment],
    folder: Path,
    baselines: Baselines,
    before: Stored | None,
    after: str,
) -> None:
    """Compare how the run ended with how it may end, and check its record. after: what was done, for each problem."""
    schedule, end = trial.schedule, trial.ends[-1]
    allowed = schedule.allowed(happened, _late(happened, folder) if end == COMPLETED else ())
    if end not in allowed:
        trial.found.append(f"{after}it ended as {end}, not as {' or '.join(sorted(allowed))}")
    unsure = any(fault.victim in ("coordinator", "command") for fault in happened)  # after the summary was written
    wrong = (trial.status == 0) if end == NONE else trial.status not in EXITS[end]
    if wrong and not unsure:
        trial.found.append(f"{after}its exit status is {trial.status} where it is {end}")
    err = folder.with_suffix(".err")
    if err.exists() and "Traceback" in err.read_text(errors="replace"):
        trial.found.append(f"{after}a traceback on the terminal")
    if end != NONE:
        trial.found += [after + problem for problem in problems(folder, before)]
    if end != COMPLETED:
        return
    samples, needed = json.loads((folder / "summary.json").read_text())["samples"], STEPS * NODES
    if samples < needed:
        trial.found.append(f"{after}it is completed with {samples} samples of {needed}")
    if schedule.lockstep and _results(schedule, folder) != baselines.of(schedule):
        trial.found.append(f"{after}it has other results than an undisturbed run")
