"""Free-running workers that fail, and start again from a peer's or the servers' parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
import torch
from torch import Tensor

from dsgd.cluster.failures import Outage
from dsgd.engines.sim.downtime import Downtime, next_outage
from dsgd.engines.sim.loop import EventLoop
from dsgd.engines.sim.network import Network
from dsgd.engines.sim.node import Node
from dsgd.engines.sim.servers import Servers
from dsgd.optim.optimizer import State


@dataclass(eq=False)
class Restarts:
    """Fail workers and start them again.

    A worker that fails loses its whole state: its pending gradient, its parameters, the vectors of its algorithm and
    optimiser, and its inbox. After the repair it fetches parameters from the servers, or else from a random running
    peer, and starts its algorithm with them, at its last step number. If no peer is running, it continues with its old
    parameters."""

    _nodes: Sequence[Node]
    _servers: Servers
    _message_bytes: float
    _outages: Sequence[Iterator[Outage]]  # of each node
    _loop: EventLoop
    _network: Network
    _downtime: Downtime
    _rngs: Sequence[np.random.Generator]  # of each node
    _leave: Callable[[int], None]  # called when a rank has failed
    _enter: Callable[[Node], None]  # the algorithm on a node

    def __post_init__(self) -> None:
        self._outage_indices = [0] * len(self._nodes)  # of each node's latest outage in the downtime

    def await_failure(self, rank: int) -> None:
        """Let a worker that is up fail when its next outage begins, or at once if one lasts."""
        down_s, up_s = next_outage(self._outages[rank], self._loop.now)
        if down_s < inf:
            self._loop.at(down_s, self._fail, rank, up_s)

    def _fail(self, rank: int, up_s: float) -> None:
        node, now_s = self._nodes[rank], self._loop.now
        if all(task.finished for task in node.tasks):
            return
        begin_s, end_s = node.computing
        if end_s > now_s:
            self._downtime.lost.append((rank, begin_s, now_s))
        self._outage_indices[rank] = len(self._downtime.down)
        self._downtime.down.append((rank, now_s, inf))
        node.fail(now_s)
        self._leave(rank)
        self._loop.at(up_s, self._restore, rank)

    def _restore(self, rank: int) -> None:
        """Let a repaired worker ask for parameters."""
        ports = self._servers.ports
        if ports:
            parts: list[Tensor | None] = [None] * len(ports)
            for shard, port in enumerate(ports):
                self._network.notify(rank, port, self._serve_part, rank, shard, parts)
            return
        up = [node.worker.rank for node in self._nodes if not node.down]
        if not up:
            self._restart(rank)
            return
        peer = up[int(self._rngs[rank].integers(len(up)))]
        self._network.notify(rank, peer, self._serve, rank, peer)

    def _serve(self, rank: int, peer: int) -> None:
        node = self._nodes[peer]
        if node.down:  # it has failed since
            self._restore(rank)
            return
        self._servers.send(peer, [(rank, self._message_bytes, self._take, (rank, node.worker.x.clone()))])

    def _serve_part(self, rank: int, shard: int, parts: list[Tensor | None]) -> None:
        servers = self._servers
        if servers.failures is not None and servers.failures.holds(shard, self._serve_part, rank, shard, parts):
            return
        arguments = (rank, shard, servers.shards[shard].server.x.clone(), parts)
        servers.send(servers.ports[shard], [(rank, self._message_bytes / len(parts), self._take_part, arguments)])

    def _take_part(self, rank: int, shard: int, part: Tensor, parts: list[Tensor | None]) -> None:
        parts[shard] = part
        present = [each for each in parts if each is not None]
        if len(present) == len(parts):
            self._take(rank, present[0] if len(present) == 1 else torch.cat(present))

    def _take(self, rank: int, x: Tensor) -> None:
        self._nodes[rank].worker.x.copy_(x)
        self._restart(rank)

    def _restart(self, rank: int) -> None:
        node, index = self._nodes[rank], self._outage_indices[rank]
        self._downtime.down[index] = (*self._downtime.down[index][:2], self._loop.now)
        node.down = False
        node.published = (node.worker.x.clone(), node.worker.steps)
        self._enter(node)
        self.await_failure(rank)


@dataclass(eq=False, kw_only=True)
class ElasticRestarts(Restarts):
    """Fail workers that average with each other, and let them join again.

    The others learn of a failure immediately. They stop expecting the worker, in the present average and in later ones.
    After the repair it asks a random member. The member answers at the start of its next step with a copy of its whole
    state, one message of the size of x. From this step on all expect the worker, which begins the step when the message
    has arrived. If no worker is running, it continues alone with its old parameters."""

    join: Callable[[Node], None]  # has all workers expect a node in the average that it enters next
    _asking: dict[int, list[int]] = field(default_factory=dict)  # {member: nodes that it answers at its next step}
    _entering: set[int] = field(default_factory=set)  # nodes with a copy in flight

    def begin_step(self, rank: int) -> None:
        """Let a member that begins a step send a copy of its state to the nodes that have asked for one."""
        for asking in self._asking.pop(rank, ()):
            self._hand_over(self._nodes[rank], self._nodes[asking])

    def present(self) -> list[Node]:
        """Return the running workers; all workers if none is running."""
        return [node for node in self._nodes if not node.down] or list(self._nodes)

    def _fail(self, rank: int, up_s: float) -> None:
        super()._fail(rank, up_s)
        for asking in self._asking.pop(rank, ()):
            self._restore(asking)

    def _restore(self, rank: int) -> None:
        up = [node for node in self._nodes if not node.down]
        members = [node.worker.rank for node in up if any(not task.finished for task in node.tasks)]
        members += sorted(self._entering)
        if members:
            peer = members[int(self._rngs[rank].integers(len(members)))]
            self._network.notify(rank, peer, self._serve, rank, peer)
        elif not up:
            node = self._nodes[rank]
            node.collectives = max(each.collectives for each in self._nodes)
            self.join(node)
            self._restart(rank)

    def _serve(self, rank: int, peer: int) -> None:
        if self._nodes[peer].down and peer not in self._entering:  # it has failed since
            self._restore(rank)
            return
        self._asking.setdefault(peer, []).append(rank)

    def _hand_over(self, peer: Node, node: Node) -> None:
        worker = node.worker
        worker.steps, node.collectives = peer.worker.steps, peer.collectives
        kept = {name: vector.clone() for name, vector in peer.worker.kept.items()}
        vectors = (peer.worker.x.clone(), kept, copy.deepcopy(peer.optimizer_state), peer.buffers.clone())
        self._entering.add(worker.rank)
        self.join(node)
        message = (worker.rank, self._message_bytes, self._take_copy, (node, *vectors))
        self._servers.send(peer.worker.rank, [message])

    def _take_copy(
        self, node: Node, x: Tensor, kept: dict[str, Tensor], optimizer_state: State | None, buffers: Tensor
    ) -> None:
        self._entering.remove(node.worker.rank)
        node.worker.kept.update(kept)
        node.optimizer_state, node.buffers = optimizer_state, buffers
        self._take(node.worker.rank, x)
