"""Main function of a parameter server's process: one shard of the centre, updated by the workers' calls."""

from __future__ import annotations

import threading
import time

import torch
from torch import Tensor

from dsgd.engine.shard import Shard
from dsgd.host.resources import keep_freed_memory
from dsgd.processes.control.frames import Message
from dsgd.processes.job import ProcessJob
from dsgd.processes.worker.coordinator_client import CoordinatorClient
from dsgd.processes.worker.process import READ_CENTRE, connect_peers, open_plane


def serve(job: ProcessJob, node: int, client: CoordinatorClient, is_replacement: bool) -> None:
    """Answer the workers' calls, and hand in snapshots, until the coordinator ends the process."""
    keep_freed_memory()
    torch.set_num_threads(1)
    client.open_snapshot_channel(node)
    experiment = job.experiment
    p, k = experiment.nodes, experiment.algo.servers
    index = node - p
    shard = Shard(experiment.algo.server(job.problem.start.tensor_split(k)[index].clone()), p)
    stored = {"counters": {}, "vectors": {}} if job.state is None else job.state["servers"][index]
    for name, vector in stored["vectors"].items():
        getattr(shard.server, name).copy_(vector)
    lock = threading.Lock()
    spans: list[tuple[float, float]] = []  # of calls, with `trace`

    def answer(rank: int, operation: str, part: Tensor | None, scalars: tuple[float, ...]) -> tuple[Tensor | None, int]:
        with lock:
            if operation == READ_CENTRE:
                return shard.server.x.clone(), 0
            begin = time.monotonic()
            result = shard.serve(rank, operation, part, scalars)
            if experiment.trace:
                spans.append((begin, time.monotonic()))
            return result

    plane = open_plane(job, node, client)
    plane.bytes_sent = stored["counters"].get("bytes_sent", 0)
    plane.serve(answer)
    connect_peers(plane, client)
    client.send("ready")
    start_s = time.monotonic() - client.wait_for("go")["time_s"]

    def counters() -> Message:
        return {"bytes_sent": plane.bytes_sent}

    def handle(message: Message, _: object) -> None:
        if message["kind"] in ("mark", "checkpoint"):
            with lock:
                vectors = {name: v.clone() for name, v in vars(shard.server).items() if isinstance(v, Tensor)}
                communicating = torch.tensor(spans, dtype=torch.float64).flatten().sub_(start_s)
            if experiment.trace and message.get("last"):
                vectors |= {"computing": communicating[:0], "communicating": communicating}
            fields = {"key": message["key"], "steps": shard.version, "time_s": time.monotonic() - start_s}
            client.submit({**fields, "counters": counters(), "extra": {}}, vectors)

    client.start_heartbeat(lambda: {"steps": shard.version, "counters": counters()})
    client.listen(handle)
    client.wait_for_exit()
