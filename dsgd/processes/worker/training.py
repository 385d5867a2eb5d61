"""Main function of a worker's process: join the run, train, and hand in snapshots until the coordinator ends it."""

from __future__ import annotations

import torch
from torch import Tensor

from dsgd.host.resources import keep_freed_memory
from dsgd.problem.precision import prepare
from dsgd.processes.control.frames import Message
from dsgd.processes.job import ProcessJob
from dsgd.processes.worker.collectives import Averaging
from dsgd.processes.worker.compute import Compute
from dsgd.processes.worker.coordinator_client import CoordinatorClient
from dsgd.processes.worker.engine import WorkerEngine
from dsgd.processes.worker.joining import connect_peers, current_model, open_groups, open_plane


def train(job: ProcessJob, rank: int, client: CoordinatorClient, is_replacement: bool) -> None:
    """Train as worker `rank`. A replacement starts from the others' current parameters."""
    keep_freed_memory()
    torch.set_num_threads(job.threads)
    client.open_snapshot_channel(rank)
    experiment, problem = job.experiment, job.problem
    devices = [torch.device(name) for name in job.devices[rank]]
    for device in devices:
        prepare(experiment.precision, device)
    plane = open_plane(job, rank, client)
    joined = connect_peers(plane, client)
    groups = open_groups(job, rank, client.local_address, joined["store"])
    x, buffers = (vector.to(devices[0], copy=True) for vector in (problem.start, problem.start_buffers))
    compute = Compute(problem, devices, groups, trace=experiment.trace)
    engine = WorkerEngine(experiment, rank, x, buffers, plane, compute, Averaging(groups), client)
    stored = job.state["workers"][rank] if job.state is not None and not is_replacement else None
    if stored is not None:
        engine.restore(stored)
    elif is_replacement or job.state is not None:
        x.copy_(current_model(plane, rank, experiment.nodes, experiment.algo.servers))
        engine.worker.steps = engine.batches = joined["steps"]
    engine.publish(engine.worker)
    plane.set_steps(engine.worker.steps)
    compute.warm_up(x, buffers, rank, engine.batches)
    client.send("ready")
    go = client.wait_for("go")
    engine.total = (go["samples"], go["own_steps"])
    client.start_heartbeat(lambda: {"steps": engine.worker.steps, "counters": engine.counters()})

    def enqueue(message: Message, _: dict[str, Tensor]) -> None:
        engine.events.put((_handle, (engine, message)))

    client.listen(enqueue)
    engine.run(go["time_s"])
    while True:  # others may still pull; `exit` ends the process
        action, arguments = engine.events.get()
        if action is _handle:
            _handle(*arguments)


def _handle(engine: WorkerEngine, message: Message) -> None:
    """Do what the coordinator asks for."""
    if message["kind"] == "total":
        engine.total = (message["samples"], message["own_steps"])
    elif message["kind"] == "mark":
        if message["last"]:
            engine.leave()
        engine.snapshot(message["key"])
    elif message["kind"] == "checkpoint":
        engine.checkpoint_at(message["key"], message["steps"])
    elif message["kind"] == "moved":
        engine.plane.relocate(message["node"], (message["host"], message["port"]))
