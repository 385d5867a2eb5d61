"""How a worker or server joins a run: its place in the pairwise plane, its process groups, its first parameters."""

from __future__ import annotations

import random
from concurrent.futures import Future
from datetime import timedelta

import torch
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.processes.control.frames import Message
from dsgd.processes.job import JOIN_TIMEOUT_S, ProcessJob
from dsgd.processes.pairwise.plane import Plane, Unreachable
from dsgd.processes.worker.collectives import Groups, join_groups
from dsgd.processes.worker.coordinator_client import CoordinatorClient
from dsgd.processes.worker.engine import CannotGoOn

READ_CENTRE = "dsgd.read"  # a call that every server answers with its range of the centre


def open_plane(job: ProcessJob, node: int, client: CoordinatorClient) -> Plane:
    """Open a node's pairwise plane on the interface that reaches the coordinator, and report its address."""
    experiment = job.experiment
    plane = Plane(
        node,
        experiment.nodes + experiment.algo.servers,
        client.local_address,
        job.token,
        job.problem.dimension,
        job.problem.dtype,
        job.limits.timeout_s,
        job.limits.patience_s,
        lambda line: print(line, flush=True),
    )
    client.send("hello", role="node", node=node, host=client.local_address, port=plane.port)
    return plane


def connect_peers(plane: Plane, client: CoordinatorClient) -> Message:
    """Wait for the addresses of all nodes and connect to them; returns the coordinator's message."""
    message = client.wait_for("addresses")
    plane.connect([tuple(address) if address else None for address in message["addresses"]])
    return message


def open_groups(job: ProcessJob, rank: int, address: str, store_port: int | None) -> Groups:
    """Join the process groups of a lock-step algorithm. Other algorithms get none: they must not depend on anybody."""
    if store_port is None:
        return Groups(rank, 1, None, None, job.limits.timeout_s)
    store = TCPStore(job.coordinator[0], store_port, is_master=False, timeout=timedelta(seconds=JOIN_TIMEOUT_S))
    backend = "nccl" if all(name.startswith("cuda") for name in job.devices[rank]) else "gloo"
    return join_groups(store, rank, job.experiment.nodes, backend, job.limits.timeout_s, address)


def current_model(plane: Plane, rank: int, nodes: int, servers: int) -> Tensor:
    """Fetch x [d] for a worker that joins late: the centre, or what some peer published last. Raises CannotGoOn."""
    if servers:
        parts: list[Future[tuple[Tensor | None, int]]] = [
            plane.call(nodes + i, READ_CENTRE, None, ()) for i in range(servers)
        ]
        return torch.cat([part for part, _ in (future.result() for future in parts) if part is not None])
    peers = [peer for peer in range(nodes) if peer != rank]
    random.Random(rank).shuffle(peers)
    for peer in peers:
        try:
            return plane.pull(peer).result().vector
        except Unreachable:
            continue
    raise CannotGoOn("no other worker is there to take the parameters from")
