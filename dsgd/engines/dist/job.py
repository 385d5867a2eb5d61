"""The task of every process of a run, inherited at the fork, and the exit statuses they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsgd.data.protocols import Digest
from dsgd.engines.dist.frames import VectorLimit
from dsgd.experiment import Experiment
from dsgd.problem.problem import Problem

HEARTBEAT_S = 0.5  # interval at which workers and servers report to the coordinator
JOIN_TIMEOUT_S = 25.0  # for all processes to arrive; shorter than a user waits before asking
TRACE_INTERVALS = 1 << 20  # of one kind and node that a trace holds
HALF_GONE_S = 1.0  # one of a process's two connections may outlive the other so long; a dead process's end together
EXIT_OK, EXIT_FAILED, EXIT_ORPHANED = 0, 1, 3  # orphaned: the coordinator is gone


class ProcessOver(BaseException):
    """Raised when a process of a run has nothing more to do. Not an Exception, so handlers of errors ignore it. status:
    exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True)
class ProcessJob:
    """The part of a run that all of its processes get when they are forked.

    coordinator: its address. timeout_s: limit for everything that must arrive. patience_s: limit for a silent peer in a
    pull or push, before the caller continues without it. devices: {rank: device names} of this machine's workers.
    share_gpus: several workers may use one GPU. attach: read large vectors in the memory of processes of this machine.
    collectives: collectives between workers on CPUs: own, a ring; torch, process groups. state: contents of the
    checkpoint to resume from; None for a new run. digest: digest of the problem, equal in all processes. start_hash:
    hash of the initial vectors of training; empty without other commands."""

    experiment: Experiment
    problem: Problem
    coordinator: tuple[str, int]
    token: bytes
    timeout_s: float
    patience_s: float
    threads: int
    devices: Mapping[int, Sequence[str]]
    share_gpus: bool = False
    attach: bool = False
    collectives: str = "own"
    state: Mapping[str, Any] | None = None
    digest: Digest = field(default_factory=dict)
    start_hash: str = ""

    def has_own_gpus(self, node: int) -> bool:
        """Return whether this machine's worker `node` has exclusive GPUs, as NCCL demands. A server has none."""
        return not self.share_gpus and any(name != "cpu" for name in self.devices.get(node, ()))

    @property
    def model_limit(self) -> VectorLimit:
        """Return the most that a model is: x and buffers."""
        numbers = [self.problem.dimension, self.problem.start_buffers.numel()]
        return VectorLimit(2, max(numbers), sum(numbers) * self.problem.start.element_size())

    @property
    def snapshot_limit(self) -> VectorLimit:
        """Return the limit of a snapshot of one node: x, buffers, the optimiser's and kept vectors, in the checkpoint
        of a worker, and intervals with `trace`. A server has at most that."""
        model, further = self.model_limit, len(self.experiment.optimizer.remembers) + self.experiment.algo.keeps
        nbytes = model.nbytes + further * self.problem.start.nbytes
        spans = 2 * TRACE_INTERVALS if self.experiment.trace else 0
        return VectorLimit(model.vectors + further, model.numbers, nbytes, spans)
