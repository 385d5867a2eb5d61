"""Where the points of a sweep stand: from their records, and from what SLURM says about their jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsgd.record.writer import METRICS, SUMMARY
from dsgd.sweep import slurm
from dsgd.sweep.manifest import Point, Sweep

FINISHED = ("completed", "diverged")
WAITING = ("running", "pending", "submitting")
# In the order of a table. lost: it is neither in the queue nor has its record an end.
STATES = (*FINISHED, *WAITING, "interrupted", "failed", "cancelled", "lost", "unsubmitted")


@dataclass(frozen=True)
class State:
    """reason: in SLURM's words or the record's, maybe empty. epoch, accuracy: at the end, or as far as it has come."""

    point: Point
    name: str
    task: str | None
    reason: str
    epoch: float | None
    accuracy: float | None


def states(sweep: Sweep) -> tuple[list[State], str | None]:
    """The state of every point, and why SLURM's data base could not be asked, if it would have had to say something.

    Raises SlurmError if the queue cannot be asked."""
    summaries = {key: _summary(sweep.folder / point.folder) for key, point in sweep.points.items()}
    open_points = {key for key, summary in summaries.items() if summary.get("status") not in FINISHED}
    jobs = sorted({sweep.tasks[key].partition("_")[0] for key in open_points & sweep.tasks.keys()})
    queued = slurm.queue(jobs)
    forgotten = sorted({sweep.tasks[key] for key in open_points & sweep.tasks.keys()} - queued.keys())
    ended, problem = {}, None
    if forgotten:
        try:
            ended = slurm.accounting(sorted({task.partition("_")[0] for task in forgotten}))
        except slurm.SlurmError as error:  # a site may have no data base: records say most of it
            problem = str(error)
    submitting = {key for points in sweep.submitting.values() for key in points}
    found = []
    for key, point in sweep.points.items():
        task = sweep.tasks.get(key)
        in_queue, reason = _of_task(queued, task or "")
        job = in_queue or ended.get(task or "", "")
        here = place(summaries[key], job, reason, key in sweep.cancelled)
        if here.name not in FINISHED and (key in submitting or task is None):
            here = Place("submitting" if key in submitting else "unsubmitted")
        last = summaries[key] or _last_mark(sweep.folder / point.folder)
        epoch, accuracy = last.get("epochs", last.get("epoch")), last.get("test_accuracy")
        found.append(State(point, here.name, task, here.reason, epoch, accuracy))
    return found, problem


def finished(sweep: Sweep) -> list[Point]:
    """The points whose records are whole. Asks nobody."""
    return [point for point in sweep.points.values() if _summary(sweep.folder / point.folder).get("status") in FINISHED]


def _of_task(queued: Mapping[str, tuple[str, str]], task: str) -> tuple[str, str]:
    """Tasks that were cancelled before they began are listed together, by the number of the job."""
    nothing = ("", "")
    whole = queued.get(task.partition("_")[0], nothing)
    return queued.get(task, whole if whole[0] == "CANCELLED" else nothing)


@dataclass(frozen=True)
class Place:
    name: str
    reason: str = ""


def place(summary: Mapping[str, Any], job: str, reason: str, cancelled: bool) -> Place:
    """summary: of the record, empty without one. job: what SLURM calls its state, empty if it knows nothing. reason:
    SLURM's for that. cancelled: by the user, since it was submitted."""
    status = summary.get("status")
    if status in FINISHED:
        return Place(str(status))
    if job in slurm.PENDING:
        return Place("pending", reason if reason != "None" else "")
    if job in slurm.RUNNING:
        return Place("running")
    if cancelled:
        return Place("cancelled")
    if status is not None:  # failed or interrupted: it could still say so
        return Place(str(status), str(summary.get("error") or job))
    if job.startswith("CANCELLED"):
        return Place("cancelled", "by scancel")
    if job in ("", "COMPLETED"):
        return Place("lost", job and "it ended without a record")
    return Place("failed", "see dsgd-sweep logs" if job == "FAILED" else job)  # TIMEOUT, OUT_OF_MEMORY, NODE_FAIL, ...


def _summary(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / SUMMARY).read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise slurm.SlurmError(f"{folder / SUMMARY} must be a JSON object, got {error}") from error


def _last_mark(folder: Path) -> dict[str, Any]:
    """The last whole line of metrics.jsonl."""
    try:
        lines = (folder / METRICS).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return {}
    return json.loads(lines[-1]) if lines else {}
