"""Lock-step methods that go on without the workers that are down (`algo.elastic`)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor

from dsgd.engines.sim.node import Node
from dsgd.engines.sim.restarts import Restarts
from dsgd.optim.optimizer import State


class ElasticRestarts(Restarts):
    """Fail workers that average with each other, and take them in again.

    The others learn of a failure at once. They expect the worker no more, neither in the average that they wait for nor
    in later ones. After the repair it asks a random member. That one answers when it begins its next step, with all
    that a copy of itself needs, one message of the size of x. From this step on all expect the worker, which begins it
    when the message has arrived. Where no worker is up it goes on alone, from the parameters that it had."""

    def __init__(self, *shared: Any, join: Callable[[Node], None]) -> None:
        """shared: as for `Restarts`. join: has all workers expect a node in the average that it enters next."""
        super().__init__(*shared)
        self._join = join
        self._asking: dict[int, list[int]] = {}  # by member, those whom it answers when it begins a step
        self._entering: set[int] = set()  # whose copy is under way

    def begin_step(self, rank: int) -> None:
        """Let a member that begins a step hand a copy of itself to those who have asked for one."""
        for asking in self._asking.pop(rank, ()):
            self._hand_over(self._nodes[rank], self._nodes[asking])

    def present(self) -> list[Node]:
        """Return the workers that are up; all, where none is."""
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
            self._join(node)
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
        self._join(node)
        self._send(peer.worker.rank, [(worker.rank, self._message_bytes, self._take_copy, (node, *vectors))])

    def _take_copy(
        self, node: Node, x: Tensor, kept: dict[str, Tensor], optimizer_state: State | None, buffers: Tensor
    ) -> None:
        self._entering.remove(node.worker.rank)
        node.worker.kept.update(kept)
        node.optimizer_state, node.buffers = optimizer_state, buffers
        self._take(node.worker.rank, x)
