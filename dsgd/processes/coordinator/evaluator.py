"""A process that evaluates parts of marks for the coordinator, and nothing else.

It is a process and not a thread of a worker's: a thread of low priority that is interrupted while it has Python's lock
would stop all others of its worker; and neither modules nor data nor torch's random stream serve two threads at a time.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from queue import SimpleQueue

import torch

from dsgd.processes.control.connection import CoordinatorConnection, CoordinatorGone
from dsgd.processes.coordinator.sharded import Part
from dsgd.processes.job import BEAT_S, Job
from dsgd.processes.worker.process import EXIT_FAILED, EXIT_LEFT, EXIT_ORPHAN


def evaluate(job: Job, name: str) -> int:
    """What the process does until the coordinator says `exit`, or is gone. Returns its exit status."""
    torch.set_num_threads(job.threads)
    try:
        line = CoordinatorConnection(job.coordinator, job.token, job.limits.timeout_s)
        line.send({"kind": "hello", "role": "evaluator", "name": name})
        wanted: SimpleQueue[tuple[int, Part]] = SimpleQueue()
        threading.Thread(target=_listen, args=(line, wanted), name="control", daemon=True).start()
        threading.Thread(target=_beat, args=(line,), name="beat", daemon=True).start()
        give_way()
        while True:
            number, part = wanted.get()
            begin = time.monotonic()
            try:
                sums = part.evaluate(job.problem)
            except Exception as error:  # whatever a model or a data set may raise
                print(traceback.format_exc(), flush=True)
                text = " ".join(f"{type(error).__name__}: {error}".split())
                line.send({"kind": "evaluated", "number": number, "error": text})
                return EXIT_FAILED
            i, k = part.shard
            count = sum(of.samples for of in sums)
            print(f"{part.mark}: part {i + 1} of {k}, {count} samples, {time.monotonic() - begin:.2f} s", flush=True)
            line.send({"kind": "evaluated", "number": number, "sums": sums})
    except CoordinatorGone as error:
        print(error, flush=True)
        return EXIT_ORPHAN


def give_way() -> None:
    """Let this thread, and what it starts, have the lowest priority."""
    with contextlib.suppress(AttributeError, OSError):  # where threads have no priority of their own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


def _listen(line: CoordinatorConnection, wanted: SimpleQueue[tuple[int, Part]]) -> None:
    try:
        while True:
            message, vectors = line.receive_with_vectors()
            if message["kind"] == "exit":
                os._exit(EXIT_LEFT)
            if message["kind"] == "evaluate":
                wanted.put((message["number"], Part.received(message, vectors)))
    except CoordinatorGone as error:
        print(error, flush=True)
        os._exit(EXIT_ORPHAN)


def _beat(line: CoordinatorConnection) -> None:
    """Signs of life, also while it computes."""
    while True:
        time.sleep(BEAT_S)
        try:
            line.send({"kind": "alive"})
        except CoordinatorGone:  # who listens hears of it, too
            return
