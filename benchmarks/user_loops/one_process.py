"""Lock-step algorithms around plain loops of torch, all ranks in one process.

Each rank is a thread, and what it sends lies on a board. The parameters are copied to and from x in the simplest way,
for comparison with `dsgd.torch`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from dsgd.engines.torch.lockstep import LockstepWorker
from dsgd.streams import stream
from dsgd.worker import Algorithm, AllReduceMean, Exchange, MeanGradient, Worker

PATIENCE_S = 60


class Board:
    """What all ranks have sent, by the number of their call: each makes the same calls in the same order."""

    def __init__(self, nodes: int) -> None:
        self.nodes, self._sent = nodes, dict[int, dict[int, Any]]()
        self._changed = threading.Condition()
        self.error: BaseException | None = None

    def send(self, number: int, rank: int, content: Any) -> None:
        with self._changed:
            self._sent.setdefault(number, {})[rank] = content
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()

    def received(self, number: int) -> list[Any]:
        """Wait for the contents of all ranks."""
        with self._changed:
            self._changed.wait_for(lambda: self.error or len(self._sent.get(number, {})) == self.nodes, PATIENCE_S)
            if self.error or len(self._sent.get(number, {})) < self.nodes:
                raise RuntimeError("another rank has failed") from self.error
            return [self._sent[number][rank] for rank in range(self.nodes)]


class BoardChannel:
    """One rank's connection with the board, in the place of a GroupChannel."""

    def __init__(self, board: Board, rank: int) -> None:
        self.board, self.rank, self.nodes, self._count = board, rank, board.nodes, 0

    def all_of(self, content: Any) -> Callable[[], list[Any]]:
        number, self._count = self._count, self._count + 1
        self.board.send(number, self.rank, content)
        return lambda: self.board.received(number)

    def start(self, request: AllReduceMean | Exchange, step: int) -> Callable[[], Any]:
        if isinstance(request, AllReduceMean):
            wait = self.all_of(request.vector.clone())
            return lambda: reduce(torch.add, wait()).div(self.nodes)
        wait = self.all_of({target: vector.clone() for target, vector in request.vectors.items()})
        return lambda: {source: wait()[source][self.rank] for source in request.sources}


class PlainRank:
    """A rank with a module and an optimiser of its own. Implements `LocalSteps`."""

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, algo: Algorithm, channel: Any) -> None:
        self.module, self.optimizer, self.channel = module, optimizer, channel
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.dtype = reduce(torch.promote_types, [parameter.dtype for parameter in self.parameters])
        self.x, self.g = self.vector(self.parameters), torch.empty(0)
        rng = stream("algorithm", 0, channel.rank)
        layout = [tuple(parameter.shape) for parameter in self.parameters]
        self.lockstep = LockstepWorker(
            algo, lambda engine: Worker(channel.rank, channel.nodes, self.x, rng, engine, layout), channel, self
        )

    def vector(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([in_memory(tensor.detach()).to(self.dtype).reshape(-1) for tensor in tensors])

    @torch.no_grad()
    def spread(self, vector: Tensor, tensors: Sequence[Tensor]) -> None:
        for tensor, piece in zip(tensors, vector.split([each.numel() for each in tensors]), strict=True):
            in_memory(tensor).copy_(piece.view(in_memory(tensor).shape))

    @torch.no_grad()
    def begin_step(self) -> None:
        """Average the gradients of a backward pass, if the algorithm asks for a mean."""
        self.x.copy_(self.vector(self.parameters))
        if not self.lockstep.is_begun:
            self.lockstep.begin()
        if isinstance(self.lockstep.asked, MeanGradient):
            self.average()

    @torch.no_grad()
    def make_step(self) -> None:
        """Hand in the gradients that the module has."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        self.g = self.vector(gradients)
        self.lockstep.answer(self.g)
        self.spread(self.x, self.parameters)
        self.optimizer.zero_grad()

    def average(self) -> None:
        """Average the gradients over the ranks that have one and zeros for the others."""
        sent = [None if p.grad is None else p.grad / self.channel.nodes for p in self.parameters]
        ranks = self.channel.all_of(sent)()
        for index, parameter in enumerate(self.parameters):
            given = [rank[index] for rank in ranks if rank[index] is not None]
            parameter.grad = reduce(torch.add, given) if given else None

    def done(self, worker: Worker) -> bool:
        return False

    def learning_rate(self, worker: Worker) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self, worker: Worker, g: Tensor) -> None:
        worker.steps += 1
        self.spread(worker.x, self.parameters)
        if g is not self.g:
            gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
            self.spread(g, gradients)
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient
        self.optimizer.step()
        worker.x.copy_(self.vector(self.parameters))

    def remembered(self) -> Sequence[Tensor]:
        states = [(p.shape, self.optimizer.state.get(p, {})) for p in self.parameters]
        return [
            value
            for shape, state in states
            for _, value in sorted(state.items())
            if isinstance(value, Tensor) and value.dim() and value.shape == shape
        ]

    def forget(self) -> None:
        self.optimizer.state.clear()


def in_memory(tensor: Tensor) -> Tensor:
    """Return a view of a tensor whose axes have their order in memory, as the rounding of some operations depends on
    it; one with gaps as it is."""
    order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
    return view if (view := tensor.permute(order)).is_contiguous() else tensor


def in_threads(nodes: int, work: Callable[[BoardChannel], Any]) -> list[Any]:
    """Call a function in a thread for each rank. Returns what they return."""
    board, results = Board(nodes), [None] * nodes

    def run(rank: int) -> None:
        torch.set_num_threads(1)  # which each thread has to say, for the same order of sums
        try:
            results[rank] = work(BoardChannel(board, rank))
        except BaseException as error:
            board.fail(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if board.error:
        raise board.error
    return results
