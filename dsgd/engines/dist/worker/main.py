"""Main functions of workers and parameter servers: join the run, do the work, submit snapshots until it ends."""

from __future__ import annotations

import os
import random
import threading
import time
from datetime import timedelta

import torch
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.data.protocols import SharedDecoding
from dsgd.engines.dist.control import Message
from dsgd.engines.dist.job import JOIN_TIMEOUT_S, ProcessJob
from dsgd.engines.dist.pairwise.plane import Plane, Unreachable
from dsgd.engines.dist.pairwise.server import Answered
from dsgd.engines.dist.worker.averaging import Averaging, CannotGoOn, Groups, join_groups, join_rings
from dsgd.engines.dist.worker.compute import Compute
from dsgd.engines.dist.worker.device_vectors import DeviceVectors
from dsgd.engines.dist.worker.engine import WorkerEngine
from dsgd.engines.dist.worker.pairwise_requests import give_answer
from dsgd.engines.dist.worker.pass_record import interval_vector
from dsgd.engines.dist.worker.process import READ_CENTRE, CoordinatorClient, connect_peers, open_plane
from dsgd.engines.rules.marks import limit_of_batch
from dsgd.engines.rules.step_rules import Shard
from dsgd.host import cuda
from dsgd.host.gpu_facts import gpu_facts
from dsgd.host.launcher import launch
from dsgd.host.resources import cores, keep_freed_memory
from dsgd.problem.precision import prepare


def train(job: ProcessJob, rank: int, client: CoordinatorClient) -> None:
    """Train as worker `rank`. One that was lost before the run was resumed starts from the others' parameters."""
    keep_freed_memory()
    torch.set_num_threads(job.threads)
    client.open_snapshot_channel(rank, shares=job.experiment.algo.lockstep and job.experiment.nodes > 1)
    experiment, problem = job.experiment, job.problem
    plane = open_plane(job, rank, client)  # it sends signs of life from now on: the next steps may take long
    devices = [torch.device(name) for name in job.devices[rank]]
    if devices[0].type == cuda.TYPE:
        cuda.tune()
    for device in devices:
        prepare(experiment.precision, device)
    if devices[0].type != "cpu":  # for code of the user's that names none
        torch.accelerator.set_device_index(devices[0])
    joined = connect_peers(plane, client)
    groups = _join_groups(job, rank, plane, joined, client.local_address, devices[0])
    x, buffers = (vector.to(devices[0], copy=True) for vector in (problem.start, problem.start_buffers))
    # an asynchronous worker's answers would wait for a queued gradient; for a quorum, finished gradients count
    late = experiment.algo.lockstep and not experiment.algo.backups
    compute = Compute(problem, devices, groups, trace=experiment.trace, late=late)
    averaging = Averaging(groups, devices[0])
    vectors = plane if devices[0].type == "cpu" else DeviceVectors(plane, devices[0])
    engine = WorkerEngine(experiment, rank, x, buffers, plane, vectors, compute, averaging, client, problem)
    stored = job.state["workers"][rank] if job.state is not None else None
    if stored is not None and "vectors" in stored:
        engine.restore(stored)
    elif job.state is not None:
        x.copy_(_current_model(plane, rank, experiment.nodes, experiment.algo.servers))
        engine.count_from(joined["steps"], joined["counters"])
    client.steps, client.counters = lambda: engine.worker.steps, engine.counters
    engine.publish(engine.worker)
    plane.set_steps(engine.worker.steps)
    limit = limit_of_batch(experiment, problem)
    compute.warm_up(x, buffers, rank, engine.batches)
    if isinstance(problem.data, SharedDecoding):
        loaded, taken = compute.input_rates(x, buffers, rank, engine.batches)
        if rank == 0:  # which is echoed
            where = launch(os.environ)
            sharing = len(job.devices) if where.kind == "local" else where.local_nodes
            here = f"{cores()} cores for {sharing} worker{'s' * (sharing > 1)}"
            wait = "; it will wait" if loaded < taken else ""
            print(f"worker 0 loads {loaded:.4g} images/s ({here}), its model takes {taken:.4g}{wait}", flush=True)
    compute.passes.loss_limit = limit
    if facts := gpu_facts(devices):
        client.send("gpu", facts=facts)
    client.send("ready")
    go = client.wait_for("go")
    engine.total = (go["samples"], go["own_steps"])

    client.listen(lambda message: engine.events.put((_handle, (engine, message))))
    engine.run(go["time_s"])
    while True:  # others may still pull and ask; `exit` ends the process
        action, arguments = engine.events.get()
        if action in (_handle, give_answer):
            action(*arguments)


def _handle(engine: WorkerEngine, message: Message) -> None:
    """Execute a request of the coordinator."""
    if message["kind"] == "total":
        engine.total = (message["samples"], message["own_steps"])
    elif message["kind"] == "mark":
        if message["last"]:
            engine.ended = True
        engine.snapshot(message["key"])
    elif message["kind"] == "checkpoint":
        engine.checkpoint_at(message["key"], message["steps"])
    elif message["kind"] == "first":
        engine.quorum.decide(message["steps"], message["ranks"])


def _join_groups(
    job: ProcessJob, rank: int, plane: Plane, joined: Message, address: str, device: torch.device
) -> Groups:
    """Join the other workers of a lock-step algorithm. Other algorithms have no groups: their workers must not depend
    on each other.

    joined: the coordinator's message with all addresses, and the port of the store for process groups. device: device
    of this worker's vectors. Raises CannotGoOn."""
    nodes, store_port = job.experiment.nodes, joined["store"]
    if not job.experiment.algo.lockstep:
        return Groups(rank, 1)
    if store_port is None:
        host, port = joined["addresses"][(rank + 1) % nodes]
        return join_rings(plane, rank, nodes, (host, port), device)
    store = TCPStore(job.coordinator[0], store_port, is_master=False, timeout=timedelta(seconds=JOIN_TIMEOUT_S))
    return join_groups(store, rank, nodes, job.timeout_s, address, device)


def _current_model(plane: Plane, rank: int, nodes: int, servers: int) -> Tensor:
    """Fetch x [d] for a worker that joins late: the centre, or the last published vector of a peer. Raises
    CannotGoOn."""
    if servers:
        parts = [plane.call(nodes + i, READ_CENTRE, None, ()) for i in range(servers)]
        return torch.cat([part for part, _ in (future.result() for future in parts) if part is not None])
    peers = [peer for peer in range(nodes) if peer != rank]
    random.Random(rank).shuffle(peers)
    for peer in peers:
        try:
            return plane.pull(peer).result().vector
        except Unreachable:
            continue
    raise CannotGoOn("no other worker is there to take the parameters from")


def serve(job: ProcessJob, node: int, client: CoordinatorClient) -> None:
    """Answer the workers' calls, and submit snapshots, until the coordinator ends the process."""
    keep_freed_memory()
    torch.set_num_threads(1)
    client.open_snapshot_channel(node)
    experiment = job.experiment
    p, k = experiment.nodes, experiment.algo.servers
    index = node - p
    shard = Shard(experiment.algo.server(job.problem.start.tensor_split(k)[index].clone()), p, job.problem.layout)
    stored = {} if job.state is None else job.state["servers"][index]["vectors"]
    for name, vector in stored.items():
        getattr(shard.server, name).copy_(vector)
    lock = threading.Lock()
    spans: list[tuple[float, float]] = []  # of calls, with `trace`

    def answer(rank: int, operation: str, part: Tensor | None, scalars: tuple[float, ...]) -> Answered:
        with lock:
            if operation == READ_CENTRE:
                return shard.server.x.clone(), 0
            begin = time.monotonic()
            result = shard.serve(rank, operation, part, scalars)
            if experiment.trace:
                spans.append((begin, time.monotonic()))
            return result

    plane = open_plane(job, node, client)
    plane.serve(answer)
    client.steps = lambda: shard.version  # workers count the messages to and from a server
    connect_peers(plane, client)
    client.send("ready")
    start_s = time.monotonic() - client.wait_for("go")["time_s"]

    def handle(message: Message) -> None:
        if message["kind"] in ("mark", "checkpoint"):
            with lock:
                vectors = {name: v.clone() for name, v in vars(shard.server).items() if isinstance(v, Tensor)}
                communicating = interval_vector("communicating", spans, start_s)
            if experiment.trace and message.get("last"):
                vectors |= {"computing": communicating[:0], "communicating": communicating}
            fields = {"key": message["key"], "steps": shard.version, "time_s": time.monotonic() - start_s}
            client.submit({**fields, "counters": client.counters(), "extra": {}}, vectors)

    client.listen(handle)
    client.wait_for_exit()
