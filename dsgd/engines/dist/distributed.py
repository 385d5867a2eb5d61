"""A run in real processes: this process becomes the parent of all others here, including the coordinator."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from dsgd.data.items import Items
from dsgd.data.protocols import ReadAhead, SharedDecoding
from dsgd.engines.dist.control import CoordinatorConnection, CoordinatorGone, Hub
from dsgd.engines.dist.coordinator.coordinator import Coordinator
from dsgd.engines.dist.coordinator.messages import MessageRules
from dsgd.engines.dist.coordinator.shared_vectors import Spool
from dsgd.engines.dist.coordinator.snapshot_schedule import WAITING_LIMIT
from dsgd.engines.dist.frames import NO_VECTORS
from dsgd.engines.dist.job import ProcessJob
from dsgd.engines.dist.launch.agreement import Joined
from dsgd.engines.dist.launch.parent import Child, Lifeline, Parent, oversight
from dsgd.engines.dist.launch.rendezvous import listen, new_token
from dsgd.engines.dist.worker.main import serve, train
from dsgd.engines.dist.worker.process import run_process
from dsgd.host.fork import run_in_child
from dsgd.host.launcher import launch
from dsgd.host.resources import cores
from dsgd.host.signals import Interrupted, signal_pipe
from dsgd.problem.precision import prepare
from dsgd.problem.problem import Problem, build_problem, start_digest
from dsgd.problem.slots import ModelFailed
from dsgd.record.checkpoint_file import check_state, read_state
from dsgd.record.reader import SUMMARY_BYTES, read_status
from dsgd.record.safe_files import make_inside, read_end
from dsgd.record.safe_text import lines_for_terminal
from dsgd.record.writer import SUMMARY
from dsgd.runner.life import checked_digest, live
from dsgd.runner.placement import worker_devices
from dsgd.runner.plan import Plan
from dsgd.runner.resume import ENDED
from dsgd.runner.values import ConfigError, key_prefix

LOGS = "logs"
LAST_BYTES = 2**16
LAST_LINES = 15  # of a failed process's log that are printed

STEPS = 2


def run_distributed(plan: Plan, folder: Path, joined: Joined | None, ended: Callable[[], None]) -> str:
    """Run a plan with its record in `folder`. Returns the status. Raises ConfigError.

    joined: the meeting with a launcher's other processes; None: all workers are started here. ended: called at the end
    of the run, before signal handlers are restored."""
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    job, listener = _job(plan, joined)
    _warn_of_crowding(job)
    with signal_pipe() as signals:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _supervised(Parent(make_inside(folder, LOGS), signals), plan, folder, job, joined, listener)
        except OSError as error:  # an error of the folder; connections handle their own errors
            if listener is not None:
                listener.close()
            _print(f"the record in {folder} cannot be written: {error.strerror}")
            return "failed"
        finally:
            ended()


def _supervised(
    parent: Parent, plan: Plan, folder: Path, job: ProcessJob, joined: Joined | None, listener: socket.socket | None
) -> str:
    """Start all processes of this command and wait for the end of the run. Returns its status."""
    over: Child | CoordinatorConnection
    earlier = _summary(folder)
    try:
        if listener is not None:
            line = Lifeline(job.timeout_s)
            main = partial(_coordinate, plan, folder, job, listener, line)
            over = parent.start("coordinator", main, quiet=False, line=line)
            listener.close()
        else:
            over = CoordinatorConnection(job.coordinator, job.token, job.timeout_s)
            over.send({"kind": "hello", "role": "agent"})
            if not has_common_start(over, job, joined.rank if joined else 0):
                return "failed"
            parent.closing.append(over.socket)
    except CoordinatorGone as error:
        _print(str(error))
        return "failed"
    _start_members(parent, job, joined)
    try:
        status = parent.supervise(over, lambda: _ask_to_stop(over))
    except KeyboardInterrupt:
        if not isinstance(over, Child) or _written_status(folder, earlier) not in ENDED:
            raise
        status = None
    if isinstance(over, CoordinatorConnection):
        return parent.status or "failed"
    if status is not None and status < 0 and parent.status is None:
        _print(f"the coordinator was killed by {signal.Signals(-status).name}; the record so far is in {folder}")
    written = _written_status(folder, earlier)
    if written in ENDED:  # even if the coordinator failed afterwards
        return written
    return "failed" if status or written is None else written


def _written_status(folder: Path, earlier: bytes | None) -> str | None:
    """Return the status in this run's summary, or None. earlier: the summary from before this run."""
    return None if _summary(folder) == earlier else read_status(folder)


def _summary(folder: Path) -> bytes | None:
    path = folder / SUMMARY
    return read_end(path, SUMMARY_BYTES) if path.is_file() else None


def _job(plan: Plan, joined: Joined | None) -> tuple[ProcessJob, socket.socket | None]:
    """Return the job of all processes, and the coordinator's listening socket if that process is started here."""
    experiment, options, where = plan.config.experiment, plan.config.engine, launch(os.environ)
    devices = worker_devices(options, experiment.nodes, os.environ)
    with key_prefix(None):
        state = None if plan.checkpoint is None else read_state(plan.checkpoint.path)
        if plan.checkpoint is not None:
            check_state(state, "dist", experiment.nodes, plan.checkpoint.path)
        if any(names == ["cpu"] for names in devices.values()):
            prepare(experiment.precision, torch.device("cpu"))
        problem = build_problem(experiment)  # data that cannot be read, a model that does not fit them
    digest = checked_digest(problem, plan.checkpoint)
    if isinstance(problem.data, Items) and problem.data.source and problem.data.source.why and where.rank == 0:
        _print(problem.data.source.why)
    if any(names == ["cpu"] for names in devices.values()) and not problem.compiled:
        try_training(problem, options.threads or 1)
    if isinstance(problem.data, SharedDecoding):
        problem.data.share(len(devices) if joined is None else where.local_nodes)
    if joined is None:
        listener = listen("127.0.0.1")
        coordinator, token = listener.getsockname()[:2], new_token()
    else:
        listener = joined.listener
        coordinator, token = (joined.meeting.host, joined.meeting.port), joined.token
    job = ProcessJob(
        experiment=experiment,
        problem=problem,
        coordinator=coordinator,
        token=bytes.fromhex(token),
        timeout_s=options.timeout_s,
        patience_s=options.patience_s,
        threads=options.threads or 1,
        devices=devices,
        share_gpus=options.workers_per_gpu > 1,
        attach=options.transport == "auto",
        collectives=options.collectives,
        state=state,
        digest=digest,
        start_hash="" if joined is None else start_digest(problem),
    )
    return job, listener


def _start_members(parent: Parent, job: ProcessJob, joined: Joined | None) -> None:
    """Fork the servers and workers that belong to this process."""
    p, k = job.experiment.nodes, job.experiment.algo.servers
    for node in range(p, p + k):
        if joined is None or (node - p) % p == joined.rank:
            parent.start(f"server {node - p}", partial(run_process, serve, job, node))
    readers = max(1, cores() // (len(job.devices) if joined is None else launch(os.environ).local_nodes))
    for rank in job.devices:
        parent.start(f"worker {rank}", partial(_train, job, rank, readers), echo=rank == 0)


def _train(job: ProcessJob, rank: int, readers: int) -> int:
    """Run a worker; returns the exit status. readers: number of processes that read its samples ahead, if worth it."""
    if isinstance(job.problem.data, ReadAhead):
        job.problem.data.read_ahead(readers)  # while this process has one thread
    return run_process(train, job, rank)


def _ask_to_stop(over: Child | CoordinatorConnection) -> None:
    """Ask the coordinator to end the run."""
    if isinstance(over, Child):
        assert over.line is not None
        over.line.ask_to_stop()
    else:
        with contextlib.suppress(CoordinatorGone):  # which the receiving code also notices
            over.send({"kind": "interrupt"})


def _warn_of_crowding(job: ProcessJob) -> None:
    workers, available = sum(names == ["cpu"] for names in job.devices.values()), cores()
    if workers * job.threads > available:
        _print(f"warning: {workers} workers of {job.threads} threads share {available} cores and wait for each other")


def _coordinate(plan: Plan, folder: Path, job: ProcessJob, listener: socket.socket, line: Lifeline) -> int:
    """Coordinate the run and keep its record, in a separate process. Returns the exit status."""
    with oversight(line) as stops:
        spool = Spool(folder, WAITING_LIMIT, _print)
        hub = Hub(listener, job.token, _print, MessageRules(job), spool.empty)
        training = Coordinator(job, hub, _print, plan.config.engine.checkpoint_every_s)
        training.monitor.listen()  # the other processes must not wait until the disk has taken the record's first files
        status = live(plan, folder, training, stops)
    if status == "failed":
        _print_log(folder / LOGS, training.monitor.culprit)
    return 1 if status == "failed" else 0


def _print_log(logs: Path, name: str | None) -> None:
    """Print the last lines of the process that failed."""
    log = logs / f"{(name or '').replace(' ', '_')}.log"
    lines = read_end(log, LAST_BYTES).decode(errors="replace").splitlines() if log.is_file() else []
    if lines:
        _print("\n".join([f"last lines of {log}:", *(f"    {line}" for line in lines[-LAST_LINES:])]))


def _print(line: str) -> None:
    print(lines_for_terminal(line), file=sys.stderr, flush=True)


def has_common_start(line: CoordinatorConnection, job: ProcessJob, rank: int) -> bool:
    """Have the coordinator compare this command's problem with its own, and receive the initial vectors of training.
    Returns whether the run continues. Raises CoordinatorGone."""
    line.send({"kind": "start", "rank": rank, "digest": job.digest, "hash": job.start_hash})
    line.limit = job.model_limit
    while True:
        message, vectors = line.receive_with_vectors()
        if message["kind"] == "exit":
            return False
        if message["kind"] == "start":
            break
    line.limit = NO_VECTORS
    for vector, name in ((job.problem.start, "x"), (job.problem.start_buffers, "buffers")):
        if name in vectors:
            vector.copy_(vectors[name])
    return True


def try_training(problem: Problem, threads: int) -> None:
    """Make some steps on the CPU in a separate process, which keeps the module unchanged. Raises ConfigError for a
    model that cannot be trained, and KeyboardInterrupt after a signal."""
    if not problem.state.in_place:
        return
    child = run_in_child(lambda: _failure(problem, threads))
    if child.signals:
        raise Interrupted
    if child.text:
        raise ConfigError(child.text)


def _failure(problem: Problem, threads: int) -> str:
    """Return why the model cannot be trained, in one line; "" if it can."""
    torch.set_num_threads(threads)
    x, buffers = problem.start.clone(), problem.start_buffers.clone()
    try:
        for step in range(STEPS):
            problem.gradient(x, buffers, 0, step)
    except ModelFailed as error:
        return str(error)
    except Exception as error:  # a user's module may raise anything
        return " ".join(f"the model fails in training: {type(error).__name__}: {error}".split())
    return ""
