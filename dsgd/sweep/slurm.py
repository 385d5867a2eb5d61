"""Call the commands of SLURM that a sweep needs. Each ends within a minute, or raises an error of one line."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

WAIT_S = 60.0
MISSING = "{} must be on the PATH (a login node of SLURM has it), got none"
# States in which SLURM has not ended a job; it has ended jobs in all other states.
PENDING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "SUSPENDED", "RESIZING")


class SlurmError(ValueError):
    """Says in one line which command of SLURM is missing or has failed."""


class NoAnswer(SlurmError):
    """Says that a command gave no answer in time; SLURM may still have done what was asked."""


def submit(script: Path, indices: int, at_once: int | None, folder: Path, output: Path) -> str:
    """Submit an array with tasks 0 to indices - 1; returns the number of the job.

    folder: where it runs. output: what it prints, with SLURM's %A and %a. Raises SlurmError."""
    array = f"--array=0-{indices - 1}" + (f"%{at_once}" if at_once else "")
    # as arguments, because lines of #SBATCH cannot hold every name of a folder
    places = [f"--chdir={folder}", f"--output={output}"]
    printed = _call("sbatch", "--parsable", array, *places, str(script)).strip()
    job = printed.partition(";")[0]  # the cluster follows, where there are several
    if not job.isdecimal():
        raise SlurmError(f"sbatch must print the number of the job, got {printed!r}")
    return job


def largest_array() -> int:
    """Return how many tasks an array may have. Raises SlurmError where nothing can be submitted."""
    if shutil.which("sbatch") is None:
        raise SlurmError(MISSING.format("sbatch"))
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", _call("scontrol", "show", "config"), re.MULTILINE)
    return int(match[1]) if match else 1001  # SLURM's default


def queue(jobs: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return state and reason of the array tasks (like 12_3) of these jobs, if SLURM's controller remembers them."""
    if not jobs:
        return {}
    chosen = ["--noheader", "--array", "--states=all", f"--jobs={','.join(jobs)}", "--format=%i|%T|%r"]
    try:
        printed = _call("squeue", *chosen)
    except SlurmError as error:
        if "Invalid job id" not in str(error):
            raise
        return {}  # it has forgotten all of them
    rows = (line.split("|", 2) for line in printed.splitlines() if line.count("|") >= 2)
    return {task: (state, reason) for task, state, reason in rows}


def find_job(name: str) -> str | None:
    """Return the number of the job of this name; None if there is none."""
    printed = _call("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%F").split()
    return printed[0] if printed else None


def accounting(jobs: Sequence[str]) -> dict[str, str]:
    """Return how the array tasks of these jobs ended, from SLURM's data base. Raises SlurmError if there is none."""
    chosen = ["--noheader", "--allocations", "--parsable2", f"--jobs={','.join(jobs)}", "--format=JobID,State"]
    rows = (line.split("|", 1) for line in _call("sacct", *chosen).splitlines() if "|" in line)
    return {task: state.split()[0] for task, state in rows if state}  # CANCELLED by 1000


def cancel(tasks: Sequence[str]) -> None:
    """Cancel array tasks, like 12_3."""
    for start in range(0, len(tasks), 500):  # a command line has a limit
        _call("scancel", *tasks[start : start + 500])


def _call(*command: str) -> str:
    """Return what a command prints. Raises SlurmError."""
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=WAIT_S)
    except FileNotFoundError as error:
        raise SlurmError(MISSING.format(command[0])) from error
    except subprocess.TimeoutExpired as error:
        raise NoAnswer(f"{command[0]} gave no answer for {WAIT_S:g} s") from error
    except OSError as error:
        raise SlurmError(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        errors = [line.removeprefix(f"{command[0]}: error: ") for line in done.stderr.splitlines() if line.strip()]
        raise SlurmError(f"{command[0]} failed: {'; '.join(errors) or f'exit status {done.returncode}'}")
    return done.stdout
