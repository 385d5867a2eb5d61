"""Main function of an evaluator's process, which evaluates parts of marks for the coordinator.

It is a process and not a thread of a worker: a low-priority thread interrupted while it holds Python's lock would stop
all threads of its worker; and neither modules nor data nor torch's random stream serve two threads at a time.
"""

from __future__ import annotations

import time
import traceback
from queue import SimpleQueue

import torch
from torch import Tensor

from dsgd.host.resources import lower_thread_priority
from dsgd.processes.control.frames import Message
from dsgd.processes.coordinator.sharded import EvaluationPart
from dsgd.processes.job import EXIT_FAILED, ProcessJob
from dsgd.processes.worker.coordinator_client import CoordinatorClient


def evaluate(job: ProcessJob, rank: int, client: CoordinatorClient, is_replacement: bool) -> None:
    """Evaluate parts as they come, until the coordinator ends the process or an evaluation raises."""
    torch.set_num_threads(job.threads)
    parts: SimpleQueue[EvaluationPart] = SimpleQueue()

    def enqueue(message: Message, vectors: dict[str, Tensor]) -> None:
        if message["kind"] == "evaluate":
            x, buffers = vectors["x"], vectors["buffers"]
            parts.put(EvaluationPart(message["mark"], x, buffers, sets=message["sets"], shard=message["shard"]))

    client.send("hello", role="evaluator", name=f"evaluator {rank}")
    client.listen(enqueue)
    client.start_heartbeat(dict)
    lower_thread_priority()
    while True:
        part = parts.get()
        begin = time.monotonic()
        try:
            sums = part.evaluate(job.problem)
        except Exception as error:  # whatever a model or a data set may raise
            print(traceback.format_exc(), flush=True)
            text = " ".join(f"{type(error).__name__}: {error}".split())
            client.send("evaluated", error=text)
            raise SystemExit(EXIT_FAILED) from error
        i, k = part.shard
        count = sum(of.samples for of in sums)
        print(f"{part.mark}: part {i + 1} of {k}, {count} samples, {time.monotonic() - begin:.2f} s", flush=True)
        client.send("evaluated", sums=sums)
