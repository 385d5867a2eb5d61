"""Submit points of a sweep as jobs of SLURM, noted in the manifest before and after, and tell the states of points."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsgd.record.reader import read_last_mark, read_status, read_summary
from dsgd.record.written import check_inside, make_inside, write_atomically
from dsgd.sweep import slurm
from dsgd.sweep.manifest import MANIFEST, RUNS, ManifestWriter, Point, Sweep, cannot_write, read
from dsgd.sweep.site import JobSize, Site, job_size, script

LOGS, JOBS = "logs", "jobs"
FINISHED = ("completed", "diverged")
WAITING = ("running", "pending", "submitting")
# In the order of a table. lost: it is neither in the queue nor has its record an end.
STATES = (*FINISHED, *WAITING, "interrupted", "failed", "cancelled", "lost", "unsubmitted")


def arrays(points: Iterable[Point], site: Site) -> dict[JobSize, list[Point]]:
    """Gather points into arrays by the size of their jobs. Raises ValueError where the site cannot give that."""
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

    folder: of the sweep. slurm_overrides: the `slurm.*` of the command line that chose the site. largest: how many
    points an array may have. report: called with the job, its size and its number of points.

    Raises SlurmError; what was submitted before stays submitted."""
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
            write_atomically(path, script(_job_name(token), part, folder, size, site).encode())
            writer.submitting(token, part, slurm_overrides)
            try:
                job = slurm.submit(path, len(part), site.at_once, Path.cwd(), log(folder, "%A_%a"))
            except slurm.NoAnswer:
                raise  # `recover` will find out
            except slurm.SlurmError as error:
                writer.refused(token, str(error))
                raise
            writer.submitted(token, job)
            report(job, size, len(part))


def recover(writer: ManifestWriter, folder: Path) -> Sweep:
    """Read a sweep, after asking SLURM about submissions whose outcome is not noted because their submitter died."""
    sweep = read(folder) if (folder / MANIFEST).exists() else Sweep(folder)
    for token in sweep.submitting:
        job = slurm.find_job(_job_name(token))
        if job is None:
            writer.refused(token, "it never came to SLURM")
        else:
            writer.submitted(token, job)
    return read(folder) if sweep.submitting else sweep


def log(folder: Path, task: str) -> Path:
    """Return the file that an array task prints to."""
    return folder / LOGS / f"{task}.log"


def _job_name(token: str) -> str:
    return f"dsgd-{token}"


@dataclass(frozen=True)
class PointState:
    """The state of one point.

    name: of STATES. task: its latest array task, like 12_3. reason: in SLURM's words or the record's, maybe empty.
    epoch, accuracy: at the end of the run, or at its last mark."""

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
    queued = slurm.queue(_jobs(tasks))
    ended, problem = {}, None
    if forgotten := tasks - queued.keys():
        try:
            ended = slurm.accounting(_jobs(forgotten))
        except slurm.SlurmError as error:  # a site may have no data base: records say most of it
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
    """Return the points that their records call completed or diverged. Asks SLURM nothing."""
    return [point for point in sweep.points.values() if read_status(sweep.folder / point.folder) in FINISHED]


def state(summary: Mapping[str, Any], job: str, reason: str, cancelled: bool) -> tuple[str, str]:
    """Decide the state of a point that was submitted, and the reason to show for it.

    summary: of the record, empty without one. job: SLURM's name for the state of its task, empty if unknown; reason:
    SLURM's for that. cancelled: by the user, since it was submitted."""
    status = summary.get("status")
    if status in FINISHED:
        return str(status), ""
    if job in slurm.PENDING:
        return "pending", reason if reason != "None" else ""
    if job in slurm.RUNNING:
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
