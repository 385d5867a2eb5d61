"""The mean of the first gradients of a step: which are in time, and what workers do whose gradients come too late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dsgd.engines.rules.task import Task
from dsgd.engines.sim.all_reduce import AllReduces
from dsgd.engines.sim.loop import EventLoop
from dsgd.engines.sim.node import Node
from dsgd.gradients.pending import PendingGradient
from dsgd.worker import MeanOfFirst


class Quorum:
    """Let all workers make one step after the other, each of which takes the first gradients that are complete."""

    def __init__(
        self,
        nodes: int,
        loop: EventLoop,
        all_reduces: AllReduces,
        begin: Callable[[Node, Tensor], tuple[PendingGradient, float]],
        finish: Callable[[Node, PendingGradient], Tensor | None],
    ) -> None:
        """begin: a gradient of a node at a point; returns it and when it is over. finish: returns its value, None if
        the run ends with it."""
        self._loop = loop
        self._all_reduces = all_reduces
        self._begin = begin
        self._finish = finish
        self._number = 0  # of the step that is under way
        self._waiting: list[tuple[Task[Any], MeanOfFirst] | None] = [None] * nodes  # those who want the step's mean
        self._first: dict[int, Tensor] = {}  # gradients of the step, by rank
        self._computes = [False] * nodes

    def enter(self, task: Task[Any], request: MeanOfFirst) -> None:
        """Let a worker take part in the step under way, unless it is busy with a gradient of an earlier one."""
        rank = task.owner.worker.rank
        self._waiting[rank] = (task, request)
        if not self._computes[rank]:
            self._compute(task.owner, request.at)

    def _compute(self, node: Node, at: Tensor) -> None:
        self._computes[node.worker.rank] = True
        gradient, end_s = self._begin(node, at)
        self._loop.at(end_s, self._computed, node, gradient, self._number)

    def _computed(self, node: Node, gradient: PendingGradient, number: int) -> None:
        rank = node.worker.rank
        self._computes[rank] = False
        waiting = self._waiting[rank]
        if waiting is None:  # the step is complete, and its mean on its way
            return
        _, request = waiting
        if number < self._number:
            self._compute(node, request.at)
            return
        value = self._finish(node, gradient)
        if value is None:
            return
        self._first[rank] = value
        if len(self._first) == request.count:
            self._close()

    def _close(self) -> None:
        """End the step: all workers take part in the all-reduce of its gradients, those without one with zeros."""
        waiting, first = self._waiting, self._first
        self._number += 1
        self._waiting, self._first = [None for _ in waiting], {}
        for rank, entered in enumerate(waiting):
            assert entered is not None  # every worker has had the mean of the step before
            self._all_reduces.enter(entered[0], first.get(rank), self._loop.now, self._loop.now)
