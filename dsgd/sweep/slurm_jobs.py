"""Submit points of a sweep as jobs of SLURM, noted in the manifest before and after, and return the states of points.

Each command of SLURM ends within a minute, or raises an error of one line."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsgd.record.reader import read_last_mark, read_status, read_summary
from dsgd.record.safe_files import check_inside, make_inside, write_atomically
from dsgd.sweep.manifest import MANIFEST, RUNS, ManifestWriter, Point, Sweep, cannot_write, read_sweep
from dsgd.sweep.site import JobSize, Site, batch_script, job_size

LOGS, JOBS = "logs", "jobs"
FINISHED = ("completed", "diverged")
WAITING = ("running", "pending", "submitting")
# In the order of a table. lost: it is neither in the queue nor has its record an end.
STATES = (*FINISHED, *WAITING, "interrupted", "failed", "cancelled", "lost", "unsubmitted")
WAIT_S = 60.0
MISSING = "{} must be on the PATH (a login node of SLURM has it), got none"
# States in which SLURM has not ended a job; it has ended jobs in all other states.
PENDING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
RUNNING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED", "SUSPENDED", "RESIZING")


class SlurmError(ValueError):
    """Says in one line which command of SLURM is missing or has failed."""


class NoAnswer(SlurmError):
    """Says that a command gave no answer in time; SLURM may still have executed it."""


def arrays(points: Iterable[Point], site: Site) -> dict[JobSize, list[Point]]:
    """Gather points into arrays by the size of their jobs. Raises ValueError if the site lacks their resources."""
    by_size: dict[JobSize, list[Point]] = {}
    for point in points:
        by_size.setdefault(job_size(point, site), []).append(point)
    return by_size


def submit(
    writer: ManifestWriter,
    folder: Path,
    points: Sequence[Point],
    site: Site,
    slurm_overrides: Sequence[str],
    largest: int,
    report: Callable[[str, JobSize, int], None],
) -> None:
    """Submit arrays of points that the manifest lists.

    folder: folder of the sweep. slurm_overrides: the `slurm.*` of the command line that chose the site. largest:
    maximum of points in an array. report: called with the job, its size and its number of points.

    Raises SlurmError; arrays submitted before stay submitted."""
    folder = folder.absolute()
    try:
        for name in (LOGS, JOBS, RUNS):
            make_inside(folder, name)
        for point in points:
            check_inside(folder, point.folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
    for size, members in arrays(points, site).items():
        for start in range(0, len(members), largest):
            part = members[start : start + largest]
            token = secrets.token_hex(4)
            path = folder / JOBS / f"{token}.sh"
            write_atomically(path, batch_script(_job_name(token), part, folder, size, site).encode())
            writer.submitting(token, part, slurm_overrides)
            try:
                job = _submit_array(path, len(part), site.at_once, Path.cwd(), log(folder, "%A_%a"))
            except NoAnswer:
                raise  # `recover` will find out
            except SlurmError as error:
                writer.refused(token, str(error))
                raise
            writer.submitted(token, job)
            report(job, size, len(part))


def recover(writer: ManifestWriter, folder: Path) -> Sweep:
    """Read a sweep, after asking SLURM about submissions whose outcome is not noted because their submitter died."""
    sweep = read_sweep(folder) if (folder / MANIFEST).exists() else Sweep(folder)
    for token in sweep.submitting:
        job = _find_job(_job_name(token))
        if job is None:
            writer.refused(token, "it never came to SLURM")
        else:
            writer.submitted(token, job)
    return read_sweep(folder) if sweep.submitting else sweep


def log(folder: Path, task: str) -> Path:
    """Return the file that an array task prints to."""
    return folder / LOGS / f"{task}.log"


def _job_name(token: str) -> str:
    return f"dsgd-{token}"


@dataclass(frozen=True)
class PointState:
    """The state of one point.

    name: one of STATES. task: its latest array task, like 12_3. reason: reason from SLURM or the record, maybe empty.
    epoch, accuracy: values at the end of the run, or at its last mark."""

    point: Point
    name: str
    task: str | None
    reason: str
    epoch: float | None
    accuracy: float | None


def states(sweep: Sweep) -> tuple[list[PointState], str | None]:
    """Return the state of every point, and why SLURM's data base could not be asked, if it was needed.

    Raises SlurmError if the queue cannot be asked, ValueError if a record is broken."""
    summaries = {key: read_summary(sweep.folder / point.folder) or {} for key, point in sweep.points.items()}
    unfinished = {key for key, summary in summaries.items() if summary.get("status") not in FINISHED}
    tasks = {sweep.tasks[key] for key in unfinished & sweep.tasks.keys()}
    queued = _queue(_jobs(tasks))
    ended, problem = {}, None
    if forgotten := tasks - queued.keys():
        try:
            ended = _accounting(_jobs(forgotten))
        except SlurmError as error:  # a site may have no data base: records say most of it
            problem = str(error)
    submitting = {key for points in sweep.submitting.values() for key in points}
    point_states = []
    for key, point in sweep.points.items():
        task, summary = sweep.tasks.get(key), summaries[key]
        in_queue, reason = _of_task(queued, task or "")
        name, why = state(summary, in_queue or ended.get(task or "", ""), reason, key in sweep.cancelled)
        if name not in FINISHED and (key in submitting or task is None):
            name, why = "submitting" if key in submitting else "unsubmitted", ""
        last = summary or read_last_mark(sweep.folder / point.folder) or {}
        epoch, accuracy = last.get("epochs", last.get("epoch")), last.get("test_accuracy")
        point_states.append(PointState(point, name, task, why, epoch, accuracy))
    return point_states, problem


def finished(sweep: Sweep) -> list[Point]:
    """Return the points with status completed or diverged in their records. Does not query SLURM."""
    return [point for point in sweep.points.values() if read_status(sweep.folder / point.folder) in FINISHED]


def state(summary: Mapping[str, Any], job: str, reason: str, cancelled: bool) -> tuple[str, str]:
    """Decide the state of a point that was submitted, and the reason to show for it.

    summary: summary of the record, empty without one. job: SLURM's name for the state of its task, empty if unknown.
    reason: SLURM's reason. cancelled: True if the user has cancelled it since its submission."""
    status = summary.get("status")
    if status in FINISHED:
        return str(status), ""
    if job in PENDING:
        return "pending", reason if reason != "None" else ""
    if job in RUNNING:
        return "running", ""
    if cancelled:
        return "cancelled", ""
    if status is not None:  # failed or interrupted: it could still say so
        return str(status), str(summary.get("error") or job)
    if job.startswith("CANCELLED"):
        return "cancelled", "by scancel"
    if job in ("", "COMPLETED"):
        return "lost", job and "it ended without a record"
    return "failed", "see dsgd-sweep logs" if job == "FAILED" else job  # TIMEOUT, OUT_OF_MEMORY, NODE_FAIL, ...


def _jobs(tasks: Collection[str]) -> list[str]:
    """List the jobs of array tasks: 12 of 12_3."""
    return sorted({task.partition("_")[0] for task in tasks})


def _of_task(queued: Mapping[str, tuple[str, str]], task: str) -> tuple[str, str]:
    """Find state and reason of a task in the queue. SLURM lists tasks that were cancelled before they began together,
    by the number of the job."""
    nothing = ("", "")
    whole = queued.get(task.partition("_")[0], nothing)
    return queued.get(task, whole if whole[0] == "CANCELLED" else nothing)


def _submit_array(path: Path, indices: int, at_once: int | None, folder: Path, output: Path) -> str:
    """Submit an array with tasks 0 to indices - 1; returns the number of the job.

    folder: working folder. output: file for its output, with SLURM's %A and %a. Raises SlurmError."""
    array = f"--array=0-{indices - 1}" + (f"%{at_once}" if at_once else "")
    # as arguments, because lines of #SBATCH cannot hold every name of a folder
    places = [f"--chdir={folder}", f"--output={output}"]
    printed = _call("sbatch", "--parsable", array, *places, str(path)).strip()
    job = printed.partition(";")[0]  # the cluster's name follows, if there are several
    if not job.isdecimal():
        raise SlurmError(f"sbatch must print the number of the job, got {printed!r}")
    return job


def largest_array() -> int:
    """Return the maximum of tasks in an array. Raises SlurmError if nothing can be submitted."""
    if shutil.which("sbatch") is None:
        raise SlurmError(MISSING.format("sbatch"))
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", _call("scontrol", "show", "config"), re.MULTILINE)
    return int(match[1]) if match else 1001  # SLURM's default


def _queue(jobs: Sequence[str]) -> dict[str, tuple[str, str]]:
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


def _find_job(name: str) -> str | None:
    """Return the number of the job of this name, or None."""
    printed = _call("squeue", "--noheader", "--states=all", f"--name={name}", "--format=%F").split()
    return printed[0] if printed else None


def _accounting(jobs: Sequence[str]) -> dict[str, str]:
    """Return the final states of these jobs' array tasks, from SLURM's data base. Raises SlurmError without it."""
    chosen = ["--noheader", "--allocations", "--parsable2", f"--jobs={','.join(jobs)}", "--format=JobID,State"]
    rows = (line.split("|", 1) for line in _call("sacct", *chosen).splitlines() if "|" in line)
    return {task: state.split()[0] for task, state in rows if state}  # CANCELLED by 1000


def cancel(tasks: Sequence[str]) -> None:
    """Cancel array tasks, like 12_3."""
    for start in range(0, len(tasks), 500):  # a command line has a limit
        _call("scancel", *tasks[start : start + 500])


def _call(*command: str) -> str:
    """Return the output of a command. Raises SlurmError."""
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
