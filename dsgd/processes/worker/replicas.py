"""Forward and backward passes on the devices of one worker, and the order in which their gradients are handed on.

The gradient [d] is cut at fixed places into chunks, from the last parameter to the first, which is about the order in
which a backward pass finishes them. A chunk is handed on as soon as every replica has finished it and all chunks
before it have been handed on: the order is the same in every pass of every worker.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from dsgd.problem.problem import Problem
from dsgd.processes.worker.batches import Batch


@dataclass(frozen=True)
class Chunk:
    """A range of [d], and the places of the parameters in it."""

    begin: int
    end: int
    parameters: range


def cut(problem: Problem, chunk_bytes: int) -> list[Chunk]:
    """Chunks of whole parameters, in the order of communication: the first one ends at d. Each is the smallest of at
    least chunk_bytes; the last one, at 0, may be smaller."""
    chunks: list[Chunk] = []
    end, after = problem.dimension, len(problem.parameters)
    for place in reversed(range(after)):
        begin = problem.parameters[place].start
        if place == 0 or (end - begin) * problem.start.itemsize >= chunk_bytes:
            chunks.append(Chunk(begin, end, range(place, after)))
            end, after = begin, place
    return chunks


class InOrder:
    """Hands on every chunk once all its parameters have been reported, by any thread, and never before its turn."""

    def __init__(self, chunks: Sequence[Chunk], replicas: int, hand_on: Callable[[Chunk], None]) -> None:
        self._chunks = chunks
        self._missing = [replicas * len(chunk.parameters) for chunk in chunks]
        self._next = 0
        self._hand_on = hand_on
        self._lock = threading.Lock()

    def report(self, place: int) -> None:
        """One replica has finished one more parameter of the chunk at this place."""
        with self._lock:
            self._missing[place] -= 1
            while self._next < len(self._chunks) and not self._missing[self._next]:
                self._advance()

    def flush(self) -> None:
        """Hand on the rest, chunks with parameters that no forward pass used, once all passes have ended."""
        with self._lock:
            while self._next < len(self._chunks):
                self._advance()

    def _advance(self) -> None:
        self._next += 1
        self._hand_on(self._chunks[self._next - 1])


class Replica:
    """The module on one device."""

    def __init__(self, problem: Problem, device: torch.device, chunks: Sequence[Chunk]) -> None:
        self.device = device
        self._problem = problem
        self._report: Callable[[int], None] | None = None  # in a pass of our own
        problem.to(device)
        self._parameters = [slot.owner.get_parameter(slot.name) for slot in problem.parameters]
        self._hooks = [self._watch(chunk, place) for place, chunk in enumerate(chunks)]

    def run(self, x: Tensor, buffers: Tensor, batch: Batch, weight: float, report: Callable[[int], None]) -> None:
        """One forward and backward pass at x [d] for `weight` times the loss; reports the place of a parameter's chunk
        as soon as the parameter's gradient is there. Changes the buffers [nb] in place. All tensors are on the
        device."""
        batch.wait()
        problem = self._problem
        problem.bind(x, buffers)
        for parameter in self._parameters:
            parameter.grad = None
        problem.module.train()
        self._report = report
        try:
            loss = problem.data.loss(problem.outputs(batch.inputs), batch.targets)
            (loss * weight).backward()  # no gradient has to be scaled afterwards
        finally:
            self._report = None

    def collect(self, chunk: Chunk, factor: float, decay: float, out: Tensor) -> None:
        """Write `factor` times the gradient of a chunk, and `decay` times that of the weight decay, into out
        [end - begin]; where the pass did not come the gradient is zero."""
        parameters = [self._parameters[place] for place in chunk.parameters]
        slots = [self._problem.parameters[place] for place in chunk.parameters]
        for parameter, slot in zip(parameters, slots, strict=True):
            into = slot.view(out, chunk.begin)
            gradient = into.zero_() if parameter.grad is None else parameter.grad
            if factor != 1:
                gradient = gradient.mul_(factor)
            self._problem.decayed(gradient, parameter.detach(), slot, decay, into)
            parameter.grad = None

    def close(self) -> None:
        for hooks in self._hooks:
            for hook in hooks:
                hook.remove()

    def _watch(self, chunk: Chunk, place: int) -> list[RemovableHandle]:
        def finished(_: Tensor) -> None:
            if self._report is not None:  # otherwise somebody else's pass through the same module
                self._report(place)

        return [self._parameters[of].register_post_accumulate_grad_hook(finished) for of in chunk.parameters]


def replicate(problem: Problem, devices: Sequence[torch.device], chunks: Sequence[Chunk]) -> list[Replica]:
    """The problem's own module on the first device, copies of it on the others."""
    copies = [
        Problem(
            copy.deepcopy(problem.module),
            problem.data,
            problem.dtype,
            weight_decay=0.0,
            decay_norm_and_bias=True,
            autocast=problem.autocast,
            channels_last=problem.channels_last,
            compiled=problem.compiled,
        )
        for _ in devices[1:]
    ]
    return [Replica(of, device, chunks) for of, device in zip([problem, *copies], devices, strict=True)]
