"""A machine that checks the sums that its algorithm's communication must leave unchanged (`eval.conservation`).

`Algorithm.conserves` names the sum. Only complete operations count: a step that all workers have made, a call or an ask
that has been answered. So operations in flight at a mark break no law; lost, doubled or confused vectors do.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dsgd.engines.rules.task import Task
from dsgd.engines.sim.machine import Machine
from dsgd.engines.sim.node import Node
from dsgd.streams import stream
from dsgd.worker import Call, Worker

PROJECTIONS = 4  # random projections of each vector: an error of a vector shows in any of them


class ConservingMachine(Machine):
    """Simulate as `Machine` does, and sum up the changes of the conserved sum.

    Vectors [d] are projected to [n], in double precision: n = PROJECTIONS."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        d, p = self.problem.dimension, self.experiment.nodes
        rows = stream("conservation", self.experiment.seed).standard_normal((PROJECTIONS, d))
        self._law = self.experiment.algo.conserves
        self._rows = torch.from_numpy(rows) / math.sqrt(d)
        self._shard_rows = self._rows.tensor_split(max(len(self.shards), 1), dim=1)
        self._after = torch.zeros(p, PROJECTIONS, dtype=torch.float64)  # each worker's last step
        self._steps: dict[int, tuple[Tensor, set[int]]] = {}  # changes before a step, its workers so far
        by_steps = self._law == "workers" and self.experiment.algo.lockstep
        self._by_steps = by_steps or (self._law == "workers and centre" and not self.shards)
        self._by_asks = self._law == "workers" and not by_steps
        self._asks: dict[Task[Any], Tensor] = {}  # changes of the peers by asks with answers in flight
        self._kept = self._seen(self.problem.start)  # the centre that the last worker keeps, at its last step
        self._calls = torch.zeros(p, PROJECTIONS, dtype=torch.float64)  # changes by calls in flight
        self._change = torch.zeros(PROJECTIONS, dtype=torch.float64)
        self._checked = 0

    @property
    def drift(self) -> float | None:
        """Return the change of the sum since the start, relative to the lengths of all vectors in it; None without a
        law, and before the first complete operation."""
        if not self._checked:
            return None
        vectors = [node.worker.x for node in self.nodes]
        centre = self.centre()
        scale = sum(float(self._seen(x).norm()) for x in [*vectors, *([] if centre is None else [centre])])
        change = float(self._change.norm())
        return change / scale if scale > 0 else change

    def _seen(self, vector: Tensor, rows: Tensor | None = None) -> Tensor:
        return (self._rows if rows is None else rows) @ vector.to("cpu", torch.float64)

    def launch(self) -> None:
        for node, after in zip(self.nodes, self._after, strict=True):
            after.copy_(self._seen(node.worker.x))
        super().launch()

    def step(self, worker: Worker, g: Tensor) -> None:
        rank = worker.rank
        change = self._seen(worker.x) - self._after[rank]
        super().step(worker, g)
        self._after[rank] = self._seen(worker.x)
        if not self._by_steps:
            return
        if self._law == "workers and centre" and rank == len(self.nodes) - 1:
            before, self._kept = self._kept, self._seen(worker.kept["centre"])
            change += self._kept - before
        total, made = self._steps.setdefault(worker.steps, (torch.zeros_like(change), set()))
        total += change
        made.add(rank)
        if len(made) == len(self.nodes):
            self._conclude(total)
            del self._steps[worker.steps]

    def _call(self, task: Task[Any], request: Call) -> None:
        if self._law == "centre" and request.vector is not None:
            self._calls[task.owner.worker.rank] += request.scalars[0] * self._seen(request.vector)
        super()._call(task, request)

    def _serve(self, task: Task[Any], request: Call, shard: int, part: Tensor | None) -> tuple[Tensor | None, int]:
        x, rows = self.shards[shard].server.x, self._shard_rows[shard]
        before = self._seen(x, rows)
        answer = super()._serve(task, request, shard, part)
        self._calls[task.owner.worker.rank] += self._seen(x, rows) - before
        return answer

    def _take_call(self, task: Task[Any], answer: Tensor | None) -> None:
        worker = task.owner.worker
        before = self._seen(worker.x)
        change = self._calls[worker.rank].clone()
        self._calls[worker.rank] = 0  # using the answer may begin the next call
        super()._take_call(task, answer)
        if self._law == "workers and centre":
            self._conclude(change + self._seen(worker.x) - before)
        elif self._law == "centre":
            self._conclude(change)

    def _answer_ask(self, task: Task[Any], peer: Node, vector: Tensor) -> Tensor:
        before = self._seen(peer.worker.x)
        answer = super()._answer_ask(task, peer, vector)
        self._asks[task] = self._seen(peer.worker.x) - before
        return answer

    def _take_answer(self, task: Task[Any], answer: Tensor) -> None:
        x, change = task.owner.worker.x, self._asks.pop(task)
        before = self._seen(x)
        super()._take_answer(task, answer)
        if self._by_asks:
            self._conclude(change + self._seen(x) - before)

    def _conclude(self, change: Tensor) -> None:
        self._change += change
        self._checked += 1
