"""What a worker's and a server's process does from its first moment to its last."""

from __future__ import annotations

import os
import random
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.data import DataLost
from dsgd.engine.shard import Shard
from dsgd.host.resources import keep_freed_memory
from dsgd.problem.precision import Unsuitable, prepare
from dsgd.processes.control.connection import CoordinatorConnection, CoordinatorGone
from dsgd.processes.control.frames import Message
from dsgd.processes.job import BEAT_S, HELLO_S, Job
from dsgd.processes.pairwise.plane import Plane, Unreachable
from dsgd.processes.worker.collectives import Averaging, CollectiveFailed, Groups, join_groups
from dsgd.processes.worker.compute import Compute
from dsgd.processes.worker.engine import CannotGoOn, Engine

READ = "dsgd.read"  # a call that every server answers: its range of the output model
EXIT_LEFT, EXIT_FAILED, EXIT_ORPHAN = 0, 1, 3


class Post:
    """Both connections of a process to the coordinator: one for small messages, which never wait behind a snapshot on
    the other."""

    def __init__(self, job: Job, role: str, node: int) -> None:
        self.line = CoordinatorConnection(job.coordinator, job.token, job.limits.timeout_s)
        self._bulk = CoordinatorConnection(job.coordinator, job.token, job.limits.timeout_s)
        self._bulk.send({"kind": "hello", "role": "bulk", "node": node})
        self._early: list[Message] = []
        self._listens = False
        self._handed: SimpleQueue[tuple[Message, dict[str, Tensor]]] = SimpleQueue()
        self.local_address = self.line.local_address
        threading.Thread(target=self._hand_in, name="snapshots", daemon=True).start()

    def tell(self, kind: str, **fields: Any) -> None:
        self.line.send({"kind": kind, **fields})

    def hand_in(
        self,
        key: str,
        steps: int,
        time_s: float,
        counters: dict[str, Any],
        vectors: dict[str, Tensor],
        extra: dict[str, Any],
    ) -> None:
        """Send a snapshot when its turn comes. The vectors are copies."""
        fields = {"kind": "snapshot", "key": key, "steps": steps, "time_s": time_s}
        self._handed.put(({**fields, "counters": counters, "extra": extra}, vectors))

    def _hand_in(self) -> None:
        while True:
            message, vectors = self._handed.get()
            try:
                self._bulk.send(message, vectors)
            except CoordinatorGone:  # whoever receives on the other connection hears of it
                return

    def wait_for(self, kind: str) -> Message:
        """The next message of this kind; an `exit` ends the process. What comes before it is kept for `listen`."""
        while True:
            message = self.line.receive()
            if message["kind"] == "exit":
                raise SystemExit(EXIT_LEFT)
            if message["kind"] == kind:
                return message
            self._early.append(message)

    def stay(self) -> None:
        """Wait for `exit`, which ends the process."""
        if self._listens:
            threading.Event().wait()  # the other thread ends it: two must not read from one line
        self.wait_for("exit")

    def beat(self, counters: Callable[[], Message]) -> None:
        """Give signs of life from now on."""

        def run() -> None:
            while True:
                time.sleep(BEAT_S)
                try:
                    self.tell("beat", **counters())
                except CoordinatorGone:
                    return

        threading.Thread(target=run, name="beat", daemon=True).start()

    def listen(self, handle: Callable[[Message], None]) -> None:
        """Pass on every message from now on, until `exit` or until the coordinator is gone, which ends the process at
        once, whatever it does."""

        def run() -> None:
            try:
                for message in self._early:
                    handle(message)
                while True:
                    message = self.line.receive()
                    if message["kind"] == "exit":
                        os._exit(EXIT_LEFT)
                    handle(message)
            except CoordinatorGone as error:
                print(error, flush=True)
                os._exit(EXIT_ORPHAN)

        self._listens = True
        threading.Thread(target=run, name="control", daemon=True).start()


def guarded(main: Callable[[Job, int, Post, bool], None], job: Job, role: str, node: int, again: bool) -> int:
    """Run a process's main function; returns its exit status. Whatever goes wrong is told to the coordinator, which
    decides what it means, and is in this process's log."""
    keep_freed_memory()
    try:
        post = Post(job, role, node)
    except CoordinatorGone as error:
        print(error, flush=True)
        return EXIT_ORPHAN
    try:
        main(job, node, post, again)
        return EXIT_LEFT
    except SystemExit as ended:
        return int(ended.code or 0)
    except CoordinatorGone as error:
        print(error, flush=True)
        return EXIT_ORPHAN
    except Exception as error:  # whatever an algorithm, a model or a data set may raise
        own = isinstance(error, (DataLost, Unsuitable))
        known = isinstance(error, (CannotGoOn, CollectiveFailed, Unreachable))
        text = str(error) if known or own else f"{type(error).__name__}: {error}"
        if not (known or own):
            print(traceback.format_exc(), flush=True)
        blame = error.blame if isinstance(error, CannotGoOn) else None
        try:
            post.tell("failed", error=" ".join(text.split()), blame=blame, known=known)
            post.stay()
        except (CoordinatorGone, SystemExit):
            pass  # it ends all the same
        return EXIT_FAILED


def work(job: Job, rank: int, post: Post, again: bool) -> None:
    """A worker. again: it takes the place of one that has died, and begins where others are."""
    torch.set_num_threads(job.threads)
    experiment, problem = job.experiment, job.problem
    p, k = experiment.nodes, experiment.algo.servers
    devices = [torch.device(name) for name in job.devices[rank]]
    for device in devices:
        prepare(experiment.precision, device)
    plane = _plane(job, rank, post)
    book = post.wait_for("book")
    plane.connect([tuple(at) if at else None for at in book["addresses"]])
    groups = _groups(job, rank, post.local_address, book)
    x, buffers = (vector.to(devices[0], copy=True) for vector in (problem.start, problem.start_buffers))
    compute = Compute(problem, devices, groups, trace=experiment.trace)
    engine = Engine(
        experiment, rank, x, buffers, plane, compute, Averaging(groups), tell=post.tell, hand_in=post.hand_in
    )
    stored = job.state["workers"][rank] if job.state is not None and not again else None
    if stored is not None:
        engine.restore(stored["steps"], stored["batches"], stored["rng"], stored["vectors"], stored["counters"])
    elif again or job.state is not None:
        x.copy_(_model_of_others(plane, rank, p, k))
        engine.worker.steps = engine.batches = book["steps"]
    engine.publish(engine.worker)
    plane.set_steps(engine.worker.steps)
    compute.warm_up(x, buffers, rank, engine.batches)
    post.tell("ready")
    go = post.wait_for("go")
    engine.total = (go["samples"], go["yours"])
    post.beat(lambda: {"steps": engine.worker.steps, "counters": engine.counters()})
    post.listen(lambda message: engine.events.put((_obey, (engine, message))))
    engine.run(go["time_s"])
    while True:  # others may still pull; `exit` ends the process
        action, arguments = engine.events.get()
        if action is _obey:
            _obey(*arguments)


def _obey(engine: Engine, message: Message) -> None:
    """Do what the coordinator asks for."""
    if message["kind"] == "total":
        engine.total = (message["samples"], message["yours"])
    elif message["kind"] == "mark":
        if message["last"]:
            engine.leave()
        engine.snapshot(message["key"])
    elif message["kind"] == "checkpoint":
        engine.checkpoint_at(message["key"], message["steps"])
    elif message["kind"] == "moved":
        engine.plane.relocate(message["node"], (message["host"], message["port"]))


def serve(job: Job, node: int, post: Post, again: bool) -> None:
    """A parameter server: passive, but for what the coordinator asks for."""
    torch.set_num_threads(1)
    experiment = job.experiment
    p, k = experiment.nodes, experiment.algo.servers
    index = node - p
    shard = Shard(experiment.algo.server(job.problem.start.tensor_split(k)[index].clone()), p)
    stored = {"counters": {}, "vectors": {}} if job.state is None else job.state["servers"][index]
    for name, vector in stored["vectors"].items():
        getattr(shard.server, name).copy_(vector)
    lock = threading.Lock()
    serving: list[tuple[float, float]] = []

    def operate(
        rank: int, operation: str, part: Tensor | None, scalars: tuple[float, ...]
    ) -> tuple[Tensor | None, int]:
        with lock:
            if operation == READ:
                return shard.server.x.clone(), 0
            begin = time.monotonic()
            answer = shard.serve(rank, operation, part, scalars)
            if experiment.trace:
                serving.append((begin, time.monotonic()))
            return answer

    plane = _plane(job, node, post)
    plane.bytes_sent = stored["counters"].get("bytes_sent", 0)
    plane.serve(operate)
    plane.connect([tuple(at) if at else None for at in post.wait_for("book")["addresses"]])
    post.tell("ready")
    begun = time.monotonic() - post.wait_for("go")["time_s"]
    left = threading.Event()

    def counters() -> Message:
        return {"steps": shard.version, "counters": {"bytes_sent": plane.bytes_sent}}

    def obey(message: Message) -> None:
        if message["kind"] in ("mark", "checkpoint"):
            with lock:
                vectors = {name: v.clone() for name, v in vars(shard.server).items() if isinstance(v, Tensor)}
                spans = torch.tensor(serving, dtype=torch.float64).flatten().sub_(begun)
            if experiment.trace and message.get("last"):
                vectors |= {"computing": spans[:0], "communicating": spans}
            post.hand_in(message["key"], shard.version, time.monotonic() - begun, counters()["counters"], vectors, {})

    post.beat(counters)
    post.listen(obey)
    left.wait()  # `exit` ends the process


def _plane(job: Job, node: int, post: Post) -> Plane:
    """The pairwise plane on the interface that reaches the coordinator; the coordinator hears where."""
    experiment = job.experiment
    plane = Plane(
        node,
        experiment.nodes + experiment.algo.servers,
        post.local_address,
        job.token,
        job.problem.dimension,
        job.problem.dtype,
        job.limits.timeout_s,
        job.limits.patience_s,
        lambda line: print(line, flush=True),
    )
    role = "worker" if node < experiment.nodes else "server"
    post.tell("hello", role=role, node=node, host=post.local_address, port=plane.port)
    return plane


def _groups(job: Job, rank: int, address: str, book: Message) -> Groups:
    """Process groups for who needs everybody; the others must not depend on anybody."""
    experiment = job.experiment
    p = experiment.nodes if experiment.algo.lockstep else 1
    if p == 1:
        return Groups(rank, 1, None, None, job.limits.timeout_s)
    store = TCPStore(job.coordinator[0], book["store"], is_master=False, timeout=timedelta(seconds=HELLO_S))
    backend = "nccl" if all(name.startswith("cuda") for name in job.devices[rank]) else "gloo"
    return join_groups(store, rank, p, backend, job.limits.timeout_s, address)


def _model_of_others(plane: Plane, rank: int, p: int, k: int) -> Tensor:
    """x [d] for a worker that comes late: the centre, or what some peer last published. Raises CannotGoOn."""
    if k:
        parts: list[Future[tuple[Tensor | None, int]]] = [plane.call(p + i, READ, None, ()) for i in range(k)]
        return torch.cat([part for part, _ in (future.result() for future in parts) if part is not None])
    others = [peer for peer in range(p) if peer != rank]
    random.Random(rank).shuffle(others)
    for peer in others:
        try:
            return plane.pull(peer).result().vector
        except Unreachable:
            continue
    raise CannotGoOn("no other worker is there to take the parameters from")
