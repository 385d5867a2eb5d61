"""The connection of a worker, server or evaluator to the coordinator."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from torch import Tensor

from dsgd.processes.control.connection import CoordinatorConnection, CoordinatorGone
from dsgd.processes.control.frames import Message
from dsgd.processes.job import EXIT_OK, EXIT_ORPHANED, HEARTBEAT_S, ProcessJob


class CoordinatorClient:
    """Sends messages and snapshots to the coordinator, and receives its messages.

    Snapshots have a connection of their own, so that a small message never waits behind one.
    """

    def __init__(self, job: ProcessJob) -> None:
        self._job = job
        self._line = CoordinatorConnection(job.coordinator, job.token, job.limits.timeout_s)
        self.local_address = self._line.local_address
        self._early: list[Message] = []  # arrived while another message was waited for
        self._listens = False
        self._snapshots: SimpleQueue[tuple[Message, dict[str, Tensor]]] = SimpleQueue()

    def send(self, kind: str, **fields: Any) -> None:
        """Send a small message."""
        self._line.send({"kind": kind, **fields})

    def open_snapshot_channel(self, node: int) -> None:
        """Open the second connection, which `submit` uses in a thread of its own."""
        line = CoordinatorConnection(self._job.coordinator, self._job.token, self._job.limits.timeout_s)
        line.send({"kind": "hello", "role": "snapshots", "node": node})

        _repeat("snapshots", lambda: line.send(*self._snapshots.get()))

    def submit(self, message: Message, vectors: dict[str, Tensor]) -> None:
        """Queue a snapshot for sending. The vectors must not change any more."""
        self._snapshots.put(({"kind": "snapshot", **message}, vectors))

    def wait_for(self, kind: str) -> Message:
        """Return the next message of this kind, and keep earlier ones for `listen`. `exit` ends the process."""
        while True:
            message = self._line.receive()
            if message["kind"] == "exit":
                raise SystemExit(EXIT_OK)
            if message["kind"] == kind:
                return message
            self._early.append(message)

    def wait_for_exit(self) -> None:
        """Wait for `exit`, which ends the process."""
        if self._listens:
            threading.Event().wait()  # the listening thread ends the process: two must not read from one connection
        self.wait_for("exit")

    def start_heartbeat(self, fields: Callable[[], Message]) -> None:
        """Send heartbeats with these fields from now on, in a thread of its own."""

        def heartbeat() -> None:
            time.sleep(HEARTBEAT_S)
            self.send("heartbeat", **fields())

        _repeat("heartbeat", heartbeat)

    def listen(self, handle: Callable[[Message, dict[str, Tensor]], None]) -> None:
        """Pass every message and its vectors to `handle` from now on, in a thread of its own. `exit`, or the loss of
        the coordinator, ends the process at once, whatever it is doing."""

        def receive_messages() -> None:
            try:
                for message in self._early:
                    handle(message, {})
                while True:
                    message, vectors = self._line.receive_with_vectors()
                    if message["kind"] == "exit":
                        os._exit(EXIT_OK)
                    handle(message, vectors)
            except CoordinatorGone as error:
                print(error, flush=True)
                os._exit(EXIT_ORPHANED)

        self._listens = True
        threading.Thread(target=receive_messages, name="control", daemon=True).start()


def _repeat(name: str, action: Callable[[], None]) -> None:
    """Repeat an action in a thread, until the coordinator is gone, which the receiving thread handles."""

    def run() -> None:
        with contextlib.suppress(CoordinatorGone):
            while True:
                action()

    threading.Thread(target=run, name=name, daemon=True).start()
