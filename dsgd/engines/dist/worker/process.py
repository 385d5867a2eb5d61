"""Run the process of a worker or server: its connection to the coordinator, its errors, its exit status."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from torch import Tensor

from dsgd.data import DataLost
from dsgd.engines.dist.control import CoordinatorConnection, CoordinatorGone, Message
from dsgd.engines.dist.frames import SPANS, BadFrame, vector_list
from dsgd.engines.dist.job import EXIT_FAILED, EXIT_OK, EXIT_ORPHANED, HALF_GONE_S, HEARTBEAT_S, ProcessJob, ProcessOver
from dsgd.engines.dist.pairwise.plane import Plane, Unreachable
from dsgd.engines.dist.worker.averaging import CannotGoOn
from dsgd.problem.precision import Unsuitable
from dsgd.problem.slots import ModelFailed

READ_CENTRE = "dsgd.read"  # a call that every server answers with its range of the centre
REPORT_S = 0.005  # interval at which a worker checks its steps and reports changes to the coordinator
OFFERED_BYTES = 1 << 16  # size of a vector above which an offer pays
REPORTS_PER_S = 2000  # from all workers together, at most: the coordinator must keep up

T = TypeVar("T")


def digests_of(vectors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return a digest of each vector that is large enough to offer it first."""
    return {
        name: hashlib.blake2b(vector.numpy().data, digest_size=16).hexdigest()
        for name, vector in vectors.items()
        if name not in SPANS and vector.nbytes >= OFFERED_BYTES
    }


def result_of(done: Future[T]) -> T:
    """Return the result; raise CannotGoOn if a peer cannot be reached."""
    try:
        return done.result()
    except Unreachable as error:
        raise CannotGoOn(str(error), error.rank) from error


class CoordinatorClient:
    """Sends messages and snapshots to the coordinator, and receives its messages.

    Snapshots have a separate connection, so small messages never wait for them. The process ends if either connection
    does.

    steps, counters: return this process's steps and counters, for the reports to the coordinator."""

    def __init__(self, job: ProcessJob) -> None:
        self._job = job
        self._line = CoordinatorConnection(job.coordinator, job.token, job.timeout_s)
        self.local_address = self._line.local_address
        self._early: list[Message] = []  # arrived while another message was waited for
        self._listens = False
        self._snapshots: SimpleQueue[tuple[Message, dict[str, Tensor]]] = SimpleQueue()
        self.steps: Callable[[], int] = int
        self.counters: Callable[[], Message] = dict

    def send(self, kind: str, **fields: Any) -> None:
        """Send a small message."""
        self._line.send({"kind": kind, **fields})

    def open_snapshot_channel(self, node: int, shares: bool = False) -> None:
        """Open the second connection, which `submit` uses in a separate thread. shares: offer the digest of each vector
        first, because the coordinator may have it from another worker."""
        line = CoordinatorConnection(self._job.coordinator, self._job.token, self._job.timeout_s)
        line.send({"kind": "hello", "role": "snapshots", "node": node})

        def send_snapshots() -> None:
            try:
                while True:
                    message, vectors = self._snapshots.get()
                    if offered := digests_of(vectors) if shares else {}:
                        line.send({"kind": "offer", "key": message["key"], "digests": offered})
                        wanted = line.receive()["names"]
                        message["same"] = [name for name in offered if name not in wanted]
                        vectors = {name: vector for name, vector in vectors.items() if name not in message["same"]}
                    line.send(message, vectors)
            except CoordinatorGone as error:
                time.sleep(2 * HALF_GONE_S)  # at the end of a run the other connection receives `exit`, and reports it
                _say(f"no snapshot can be sent: {error}")
                os._exit(EXIT_ORPHANED)

        threading.Thread(target=send_snapshots, name="snapshots", daemon=True).start()

    def submit(self, message: Message, vectors: dict[str, Tensor]) -> None:
        """Queue a snapshot for sending. The vectors must not change any more. Raises ValueError if they are more than
        a snapshot may have."""
        try:
            self._job.snapshot_limit.check(vector_list(vectors))
        except BadFrame as error:
            kept = f"an algorithm may keep at most {self._job.experiment.algo.keeps} vectors"
            raise ValueError(f"{error}: {kept}, got {', '.join(vectors)}") from error
        self._snapshots.put(({"kind": "snapshot", **message}, vectors))

    def wait_for(self, kind: str) -> Message:
        """Return the next message of this kind, and keep earlier ones for `listen`. `exit` ends the process."""
        while True:
            message = self._line.receive()
            if message["kind"] == "exit":
                raise ProcessOver(EXIT_OK)
            if message["kind"] == kind:
                return message
            self._early.append(message)

    def wait_for_exit(self) -> None:
        """Wait for `exit`, which ends the process."""
        if self._listens:
            threading.Event().wait()  # the listening thread ends the process: two must not read from one connection
        self.wait_for("exit")

    def start_reports(self, interval_s: float = HEARTBEAT_S) -> None:
        """Report to the coordinator from now on, in a separate thread: the steps whenever they have changed, and the
        counters as a heartbeat. interval_s: interval of checks of the steps."""

        def report() -> None:
            reported, beat = 0, 0.0
            with contextlib.suppress(CoordinatorGone):  # which the receiving thread also notices
                while True:
                    steps, now = self.steps(), time.monotonic()
                    if now - beat >= HEARTBEAT_S:
                        self.send("heartbeat", steps=steps, counters=self.counters())
                        beat = now
                    elif steps != reported:
                        self.send("steps", steps=steps)
                    reported = steps
                    time.sleep(interval_s)

        threading.Thread(target=report, name="reports", daemon=True).start()

    def listen(self, handle: Callable[[Message], None]) -> None:
        """Pass every message to `handle` from now on, in a separate thread. `exit`, or the loss of the coordinator,
        ends the process at once, in any state."""

        def receive_messages() -> None:
            try:
                for message in self._early:
                    handle(message)
                while True:
                    message = self._line.receive()
                    if message["kind"] == "exit":
                        os._exit(EXIT_OK)
                    handle(message)
            except CoordinatorGone as error:
                _say(str(error))
                os._exit(EXIT_ORPHANED)

        self._listens = True
        threading.Thread(target=receive_messages, name="control", daemon=True).start()


def _say(line: str) -> None:
    """Print a line in one piece: several threads may find the coordinator gone."""
    print(f"{line}\n", end="", flush=True)


ProcessMain = Callable[[ProcessJob, int, CoordinatorClient], None]


def run_process(main: ProcessMain, job: ProcessJob, index: int) -> int:
    """Run the main function of a worker or server, and return the process's exit status.

    main: gets `job`, `index` and the connection to the coordinator. index: its node.

    An exception is reported to the coordinator, which decides what follows, and in this process's log."""
    try:
        client = CoordinatorClient(job)
    except CoordinatorGone as error:
        _say(str(error))
        return EXIT_ORPHANED
    try:
        main(job, index, client)
        return EXIT_OK
    except ProcessOver as over:
        return over.status
    except CoordinatorGone as error:
        _say(str(error))
        return EXIT_ORPHANED
    except BaseException as error:  # an algorithm, a model or a data set may raise anything
        caused_by_peer = isinstance(error, (CannotGoOn, Unreachable))
        explains_itself = caused_by_peer or isinstance(error, (DataLost, ModelFailed, Unsuitable))
        text = str(error) if explains_itself else f"{type(error).__name__}: {error}"
        if not explains_itself:
            print(traceback.format_exc(), flush=True)
        suspect = error.peer if isinstance(error, CannotGoOn) else None
        with contextlib.suppress(CoordinatorGone, ProcessOver):  # the process ends in any case
            client.send("failed", error=" ".join(text.split()), suspect=suspect, caused_by_peer=caused_by_peer)
            client.wait_for_exit()
        return EXIT_FAILED


def open_plane(job: ProcessJob, node: int, client: CoordinatorClient) -> Plane:
    """Open a node's pairwise plane on the interface that reaches the coordinator, and report its address."""
    nodes = job.experiment.nodes + job.experiment.algo.servers
    problem, log = job.problem, partial(print, flush=True)
    address, timeout_s, patience_s = client.local_address, job.timeout_s, job.patience_s
    vectors = problem.dimension, problem.dtype
    on_gpu = job.devices.get(node, ["cpu"]) != ["cpu"]
    plane = Plane(
        node, nodes, address, job.token, *vectors, timeout_s, patience_s, log, attach=job.attach, pinned=on_gpu
    )
    client.send("hello", role="node", node=node, host=address, port=plane.port, gpus=job.has_own_gpus(node))
    client.start_reports(max(REPORT_S, nodes / REPORTS_PER_S))
    return plane


def connect_peers(plane: Plane, client: CoordinatorClient) -> Message:
    """Wait for the addresses of all nodes and connect to them; returns the coordinator's message."""
    message = client.wait_for("addresses")
    plane.connect([tuple(address) if address else None for address in message["addresses"]])
    return message
