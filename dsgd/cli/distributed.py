"""One run in real processes, from configuration to summary: this process becomes the parent of all others here."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dsgd.cli.build import ConfigError, build_experiment, prefixed
from dsgd.cli.joined import Joined
from dsgd.cli.progress import ProgressLine
from dsgd.cli.session import describe
from dsgd.data.protocols import Decoded
from dsgd.engine.trace import write_trace
from dsgd.host.launcher import Launch, gpus, launch
from dsgd.host.resources import cores
from dsgd.problem.precision import prepare
from dsgd.problem.problem import build_problem
from dsgd.processes.control import Hub, Line
from dsgd.processes.coordinator.coordinator import Coordinator
from dsgd.processes.coordinator.evaluator import evaluate
from dsgd.processes.coordinator.sharded import is_sharded
from dsgd.processes.job import Job, Limits
from dsgd.processes.launch.parent import Child, Parent
from dsgd.processes.launch.rendezvous import listen, new_token
from dsgd.processes.worker.process import Post, guarded, serve, work
from dsgd.record.checkpoint import NAME, read_state, write_checkpoint
from dsgd.record.mirror import Mirror
from dsgd.record.writer import SUMMARY, Record

LOGS = "logs"
LAST_LINES = 15


def run_distributed(
    values: Mapping[str, Any],
    folder: Path,
    checkpoint: tuple[Path, Mapping[str, Any]] | None,
    joined: Joined | None,
) -> str:
    """Run the configuration `values`, or go on from `checkpoint` (its path and header), with its record in `folder`.
    joined: with the processes of a launcher; None: all workers are started here. Returns the status."""
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    experiment = build_experiment(values)
    p, k = experiment.nodes, experiment.algo.servers
    ranks = list(range(p)) if joined is None else [joined.rank]
    devices = devices_of(values["engine"]["gpus_per_node"], ranks, launch(os.environ))
    with prefixed(None):
        if any(names == ["cpu"] for names in devices.values()):
            prepare(experiment.precision, torch.device("cpu"))
        problem = build_problem(experiment)  # data that cannot be read, a model that does not fit them
    if isinstance(problem.data, Decoded):
        problem.data.share(len(ranks) if joined is None else launch(os.environ).local_nodes)
    if joined is None:
        listener = listen("127.0.0.1")
        coordinator, token = listener.getsockname()[:2], new_token()
    else:
        listener = joined.listener
        coordinator, token = (joined.meeting.host, joined.meeting.port), joined.meeting.token
    job = Job(
        experiment=experiment,
        problem=problem,
        coordinator=coordinator,
        token=bytes.fromhex(token),
        limits=Limits(values["engine"]["timeout_s"], values["engine"]["patience_s"]),
        threads=values["engine"]["threads"] or 1,
        devices=devices,
        state=None if checkpoint is None else read_state(checkpoint[0]),
    )
    logs = folder / LOGS
    logs.mkdir(parents=True, exist_ok=True)
    _warn_of_crowding(job)

    parent = Parent(logs)
    over: Child | Line
    if listener is not None:
        over = parent.start(
            "coordinator", lambda again: coordinate(values, folder, checkpoint, job, listener), quiet=False
        )
        listener.close()
    else:
        over = Line(job.coordinator, job.token, job.limits.timeout_s)
        over.send({"kind": "hello", "role": "agent"})
        parent.closing.append(over.socket)
    for node in range(p, p + k):
        if joined is None or (node - p) % p == joined.rank:
            parent.start(f"server {node - p}", _process(serve, job, "server", node))
    restarts = 0 if experiment.algo.lockstep else values["engine"]["restarts"]
    for rank in ranks:
        parent.start(f"worker {rank}", _process(work, job, "worker", rank), restarts, echo=rank == 0)
    for rank in ranks[: cores()] if is_sharded(experiment, problem) else []:  # each needs memory of its own
        parent.start(f"evaluator {rank}", _evaluator(job, f"evaluator {rank}"))
    status = parent.supervise(over, lambda: _stop(over))
    if status is not None and status < 0:
        _say(f"the coordinator was killed by {signal.Signals(-status).name}; what it had recorded is in {folder}")
        return "failed"
    if parent.status is not None:
        return parent.status
    summary = folder / SUMMARY
    return json.loads(summary.read_text())["status"] if summary.is_file() else "failed"


def _process(main: Callable[[Job, int, Post, bool], None], job: Job, role: str, node: int) -> Callable[[bool], int]:
    return lambda again: guarded(main, job, role, node, again)


def _evaluator(job: Job, name: str) -> Callable[[bool], int]:
    return lambda again: evaluate(job, name)


def _stop(over: Child | Line) -> None:
    """Ask the coordinator to end the run."""
    if isinstance(over, Child):
        os.kill(over.pid, signal.SIGINT)
    else:
        over.send({"kind": "interrupt"})


def devices_of(wanted: int | None, ranks: Sequence[int], where: Launch) -> dict[int, list[str]]:
    """The devices of each worker of this process: its GPUs, or the CPU.

    wanted: GPUs of each; None: one if there are enough for all workers of this machine, else none. Raises
    ConfigError."""
    found = gpus(os.environ)
    first, workers = (0, len(ranks)) if where.kind == "local" else (where.local_rank, where.local_nodes)
    each = int(found >= workers) if wanted is None else wanted
    if each * workers > found:
        raise ConfigError(
            f"engine.gpus_per_node must be <= {found // workers} ({found} GPUs, {workers} workers here), got {each}"
        )
    return {
        rank: [f"cuda:{(first + place) * each + i}" for i in range(each)] or ["cpu"] for place, rank in enumerate(ranks)
    }


def _warn_of_crowding(job: Job) -> None:
    workers, available = sum(names == ["cpu"] for names in job.devices.values()), cores()
    if workers * job.threads > available:
        print(
            f"warning: {workers} workers of {job.threads} threads share {available} cores and wait for each other",
            file=sys.stderr,
        )


def coordinate(
    values: Mapping[str, Any],
    folder: Path,
    checkpoint: tuple[Path, Mapping[str, Any]] | None,
    job: Job,
    listener: socket.socket,
) -> int:
    """The coordinator's process: keeps the record. Returns its exit status."""
    stopped: list[int] = []

    def stop(number: int, frame: object) -> None:
        stopped.append(number)
        if len(stopped) == 2:  # no waiting for a checkpoint
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)
    before, lines, wall_s = None, 0, 0.0
    if checkpoint is not None:
        path, header = checkpoint
        before, lines, wall_s = path.parent, header["lines"], header["wall_s"]
    record = Record(folder, values, before, lines, wall_s)
    mirror = Mirror(values, folder)
    progress = ProgressLine(job.experiment, "wall")
    every_s = values["engine"]["checkpoint_every_s"]
    coordinator = Coordinator(job, Hub(listener, job.token, _say), _say, every_s)
    looked = [0.0]

    def save(state: Mapping[str, Any]) -> None:
        record.sync()
        header = {
            "config": dict(values) | {"resume": None},
            "engine": "dist",
            "lines": coordinator.progress.marks,
            "wall_s": record.wall_s,
        }
        write_checkpoint(folder, header, dict(state))

    def interrupted() -> bool:
        if time.monotonic() - looked[0] > 0.1:
            looked[0] = time.monotonic()
            progress.moved(coordinator.time_s, coordinator.samples, record.wall_s)
        return bool(stopped)

    status, error = "failed", ""
    try:
        with progress:
            for mark in coordinator.run(interrupted, save):
                record.mark(mark)
                mirror.wake()
                progress.measured(mark)
        status, error = coordinator.status, coordinator.error
        if status in ("completed", "diverged"):
            (folder / NAME).unlink(missing_ok=True)  # there is nothing to go on with
    except KeyboardInterrupt:
        status = "interrupted"
    except OSError as failure:
        error = f"the record in {folder} cannot be written: {failure.strerror}"
    except Exception as failure:  # whatever a model or a data set may raise
        error = f"the evaluation failed: {type(failure).__name__}: {failure}"
        raise
    finally:
        if status == "failed":
            _say(error)  # also where the summary cannot be written
        summary = describe(values, job.experiment) | coordinator.summary()
        try:
            record.finish(summary | {"engine": "dist", "status": status, "error": error or None})
        except OSError as failure:
            _say(f"the summary in {folder} cannot be written: {failure.strerror}")
            status = "failed"
        coordinator.close(status)
        mirror.finish()
    if job.experiment.trace:
        write_trace(coordinator.trace, coordinator.time_s, folder / "trace.json")
    if status == "failed":
        _show_log(folder / LOGS, coordinator.culprit)
    return 0 if status != "failed" else 1


def _show_log(logs: Path, name: str | None) -> None:
    """The last lines of the one that failed."""
    log = logs / f"{(name or '').replace(' ', '_')}.log"
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    if lines:
        print(f"last lines of {log}:", *(f"    {line}" for line in lines[-LAST_LINES:]), sep="\n", file=sys.stderr)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
