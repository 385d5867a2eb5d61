"""The judgement of a record: what must hold in every one, however its run ended."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from dsgd.engines.dist.coordinator.snapshots import counted_bytes
from dsgd.problem.evaluation import FIELDS
from dsgd.record.checkpoint_file import NAME, CheckpointError, read_header, read_state

BYTES = ("bytes_sent", "bytes_received")
STATUSES = ("completed", "diverged", "interrupted", "failed")
GROWING = ("time_s", "wall_s", "samples", "epoch", "bytes_sent", "bytes_received", "staleness_max")  # of marks
AT_THE_END = {"time_s": "time_s", "wall_s": "wall_s", "samples": "samples", "epochs": "epoch"} | {
    "bytes_sent_total": "bytes_sent",
    "bytes_received_total": "bytes_received",
}  # fields of the summary, and of the marks that they may not be below
SLACK = 1e-9  # relative; times and epochs are sums of floating-point numbers
ROUNDED_S = 1e-3  # `wall_s` of marks


@dataclass(frozen=True)
class Stored:
    """What a checkpoint says of the run until then. lines: marks that stay when the run goes on. behind: the first mark
    behind those, which goes then; None if there is none."""

    time_s: float
    wall_s: float
    samples: int
    bytes_sent: int
    messages_lost: int
    workers_lost: int
    lines: int
    behind: bytes | None


def stored(folder: Path) -> Stored | None:
    """Return what the checkpoint in a folder says, None without one and for a simulation's. Raises CheckpointError."""
    path = folder / NAME
    if not path.is_file():
        return None
    header = read_header(path)
    if header["engine"] != "dist":
        return None
    state, batch_size = read_state(path), header["config"]["batch_size"]
    workers = [worker for worker in state["workers"] if worker is not None]
    known = {node: own["counters"] for node, own in enumerate([*state["workers"], *state["servers"]])}
    sent, _ = counted_bytes(len(state["workers"]), len(state["servers"]), known)
    return Stored(
        time_s=state["time_s"],
        wall_s=header["wall_s"],
        samples=sum(worker["steps"] for worker in workers) * batch_size,
        bytes_sent=sum(sent),
        workers_lost=len(state["lost"]),
        messages_lost=sum(own["counters"].get("missed", 0) for own in workers),
        lines=header["lines"],
        behind=_line(folder, header["lines"]),
    )


def _line(folder: Path, number: int) -> bytes | None:
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().splitlines() if path.is_file() else []
    return lines[number] if number < len(lines) else None


def problems(folder: Path, before: Stored | None = None) -> list[str]:
    """Return what is wrong with the record in a folder, one line each; nothing for one that is valid.

    before: the checkpoint that the run went on from, read before it did, if it is a resumed one."""
    found: list[str] = []
    config = yaml.safe_load((folder / "config.yaml").read_text())
    marks = _marks(folder, found)
    summary = _object(folder / "summary.json", found)
    _object(folder / "env.json", found)
    _trace(folder, summary, found)
    _growth(marks, found)
    _bytes(marks, summary, found)
    if summary is not None:
        _summary(summary, config["batch_size"], marks, found)
    try:
        saved = stored(folder)
    except CheckpointError as error:
        found.append(str(error))
        return found
    if saved is None:
        _promised_checkpoint(folder, config, summary, marks, found)
    else:
        _checkpoint(saved, marks, summary, found)
    if before is not None and (before.behind is None or _line(folder, before.lines) != before.behind):
        _continuation(before, marks, summary, found)  # else it was killed before it had touched its marks
    return found


def _marks(folder: Path, found: list[str]) -> list[dict[str, Any]]:
    *lines, rest = (folder / "metrics.jsonl").read_bytes().split(b"\n")
    if rest:
        found.append(f"metrics.jsonl ends in a torn line of {len(rest)} bytes")
    marks = []
    for number, line in enumerate(lines, start=1):
        mark = _parsed(line)
        if isinstance(mark, dict) and isinstance(mark.get("samples"), int):
            marks.append(mark)
        else:
            found.append(f"metrics.jsonl line {number} is no mark: {line[:80]!r}")
    return marks


def _object(path: Path, found: list[str]) -> dict[str, Any] | None:
    """Return the object in a JSON file, None without the file."""
    if not path.is_file():
        return None
    value = _parsed(path.read_bytes())
    if not isinstance(value, dict):
        found.append(f"{path.name} is no whole JSON object")
        return None
    return value


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _trace(folder: Path, summary: Mapping[str, Any] | None, found: list[str]) -> None:
    path = folder / "trace.json"
    if summary is not None and path.is_file() and _parsed(path.read_bytes()) is None:
        found.append("trace.json is no whole JSON")


def _less(field: str, value: float, least: float) -> bool:
    return value < least - max(SLACK * max(1.0, abs(least)), ROUNDED_S * (field == "wall_s"))


def _growth(marks: Sequence[Mapping[str, Any]], found: list[str]) -> None:
    for number, (mark, following) in enumerate(pairwise(marks), start=2):
        found.extend(
            f"metrics.jsonl line {number}: {field} goes back from {mark[field]} to {following[field]}"
            for field in GROWING
            if _less(field, following[field], mark[field])
        )
    for number, mark in enumerate(marks, start=1):
        shares = [mark["idle_fraction_mean"], mark["idle_fraction_max"]]
        if not all(0 <= share <= 1 + SLACK for share in shares):
            found.append(f"metrics.jsonl line {number}: idle shares are {shares}")
        found.extend(
            f"metrics.jsonl line {number}: {field} is {mark[field]}"
            for field in GROWING
            if not math.isfinite(mark[field]) or mark[field] < 0
        )


def _bytes(marks: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None, found: list[str]) -> None:
    """All that was received has been sent. In real processes, which count a message at both ends at once, all that was
    sent has been received, but for what met a full inbox."""
    totals = [(f"metrics.jsonl line {i}", *(mark[name] for name in BYTES)) for i, mark in enumerate(marks, start=1)]
    refused = 0
    if summary is not None:
        totals.append(("summary.json", *(summary[f"{name}_total"] for name in BYTES)))
        refused = summary.get("messages_lost", 0) * summary["message_bytes"]
    for where, sent, received in totals:
        if not isinstance(sent, int) or not isinstance(received, int) or received > sent:
            found.append(f"{where}: {received} bytes were received, but {sent} sent")
        elif summary is not None and summary["engine"] == "dist" and received < sent - refused:
            found.append(f"{where}: {sent} bytes were sent, but {received} received, and at most {refused} refused")


def _summary(summary: Mapping[str, Any], batch_size: int, marks: Sequence[Mapping[str, Any]], found: list[str]) -> None:
    status, error = summary.get("status"), summary.get("error")
    if status not in STATUSES:
        found.append(f"summary.json: status is {status!r}")
    if status == "failed" and not (isinstance(error, str) and error.strip() and "\n" not in error):
        found.append(f"summary.json: a failed run's error is {error!r}, not one line")
    if status != "failed" and error is not None:
        found.append(f"summary.json: a run that is {status} has the error {error!r}")
    samples, steps = summary["samples"], summary["steps"]
    if summary["bytes_sent_max_node"] > summary["bytes_sent_total"]:
        found.append("summary.json: one node sent more bytes than all")
    if not steps * batch_size <= samples <= steps * batch_size * summary["nodes"]:
        found.append(f"summary.json: {samples} samples cannot be those of {steps} steps of the foremost worker")
    if not marks:
        return
    last = marks[-1]
    found.extend(
        f"summary.json: {field} is {summary[field]}, but {last[of_mark]} at the last mark"
        for field, of_mark in AT_THE_END.items()
        if _less(field, summary[field], last[of_mark])
    )
    if status != "failed":  # whose last mark may have been measured and not written
        found.extend(
            f"summary.json: {field} is {summary[field]}, but {last[field]} at the last mark"
            for field in FIELDS
            if summary[field] != last[field]
        )
    if summary.get("collapsed") and not last["train_loss"] > marks[0]["train_loss"]:
        found.append("summary.json: collapsed, but the loss is not above that of the first mark")
    if status in ("completed", "diverged") and samples != last["samples"]:
        found.append(f"summary.json: {samples} samples, but {last['samples']} at the mark that ended the run")


def _promised_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    summary: Mapping[str, Any] | None,
    marks: Sequence[object],
    found: list[str],
) -> None:
    """A run in real processes has a checkpoint from its second mark on, until it is completed or diverged."""
    source = config.get("resume")
    elsewhere = source not in (None, "auto") and Path(source).resolve() not in (folder.resolve(), folder / NAME)
    ended = summary is not None and summary.get("status") in ("completed", "diverged")
    simulated = not (folder / "logs").exists()  # which promises one on an interrupt only
    wanted = len(marks) > 1 if not simulated else summary is not None and summary.get("status") == "interrupted"
    if wanted and not (ended or elsewhere):
        found.append(f"{NAME} is missing")


def _checkpoint(
    saved: Stored, marks: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None, found: list[str]
) -> None:
    if saved.lines > len(marks):
        found.append(f"{NAME} counts {saved.lines} marks, metrics.jsonl has {len(marks)}")
    elif saved.lines:
        last = marks[saved.lines - 1]
        found.extend(
            f"{NAME}: {field} is {getattr(saved, field)}, but {last[field]} at the last mark that it counts"
            for field in ("time_s", "wall_s", "samples", "bytes_sent")
            if _less(field, getattr(saved, field), last[field])
        )
    if summary is None or summary.get("engine") != "dist":
        return
    pairs = {"time_s": "time_s", "samples": "samples", "bytes_sent_total": "bytes_sent"}
    pairs |= {"messages_lost": "messages_lost"}
    found.extend(
        f"summary.json: {field} is {summary[field]}, but {getattr(saved, own)} in {NAME}"
        for field, own in pairs.items()
        if _less(field, summary[field], getattr(saved, own))
    )


def _continuation(
    before: Stored, marks: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None, found: list[str]
) -> None:
    if len(marks) < before.lines:
        found.append(f"metrics.jsonl has {len(marks)} marks, fewer than the {before.lines} to go on from")
    for mark in marks[before.lines : before.lines + 1]:  # the others are not below it
        found.extend(
            f"the first mark after resuming: {field} is {mark[field]}, below {getattr(before, field)} before"
            for field in ("time_s", "wall_s", "samples", "bytes_sent")
            if _less(field, mark[field], getattr(before, field))
        )
    for field in ("messages_lost", "workers_lost"):
        if summary is not None and summary[field] < getattr(before, field):
            found.append(f"summary.json: {field} fell from {getattr(before, field)} to {summary[field]}")
