"""The rules of a step that every engine follows: end of training, rate, update, the marks of lock-step methods, and the
number of buckets of a gradient, each all-reduced as soon as the backward pass has finished it. Also the calls of a
parameter server's shard, and the ranges of a call's vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor

from dsgd.engines.rules.marks import marks_due
from dsgd.experiment import Experiment
from dsgd.optim.optimizer import Matrix, State
from dsgd.worker import Worker

# a third of the gradient, within limits: small buckets have more overhead, large ones less overlap
BUCKETS, LEAST_BYTES, MOST_BYTES = 3, 256 << 10, 16 << 20


def bucket_bytes(n_bytes: float) -> int:
    """Return the minimum bytes of a bucket of a gradient of n_bytes; the last bucket may have fewer."""
    return min(MOST_BYTES, max(LEAST_BYTES, ceil(n_bytes / BUCKETS)))


def bucket_count(n_bytes: float) -> int:
    """Return the number of buckets if a gradient could be cut anywhere; real buckets have whole parameters."""
    return ceil(n_bytes / bucket_bytes(n_bytes))


@dataclass
class StepRules:
    """Apply the budget, the schedule and the optimiser of an experiment to its workers.

    samples, of every method: samples that all workers together have processed, as far as the engine knows. In
    lock-step they are computed from the worker's own steps instead. So all workers use the same rate for the same step
    and end after the same step."""

    _experiment: Experiment
    _matrices: Sequence[Matrix]  # matrices in the parameters, in order
    _rate: tuple[int, float] = (-1, 0.0)  # latest: (samples, rate)

    def done(self, worker: Worker, samples: int) -> bool:
        """Return whether the worker has used up the budget of samples."""
        total, lockstep = self._experiment.total_samples, self._experiment.algo.lockstep
        return total is not None and (worker.steps * self._experiment.unit if lockstep else samples) >= total

    def learning_rate(self, worker: Worker, samples: int) -> float:
        """Return the learning rate of the worker's next step."""
        if self._experiment.algo.lockstep:
            samples = worker.steps * self._experiment.unit
        if samples != self._rate[0]:  # the simulator asks for one worker after the other, mostly at equal counts
            self._rate = (samples, self._experiment.learning_rate(samples))
        return self._rate[1]

    def step(self, worker: Worker, g: Tensor, state: State | None, samples: int) -> State | None:
        """Make one optimiser step with the gradient g [d]; returns the optimiser's new state."""
        rate = self.learning_rate(worker, samples)
        state = self._experiment.optimizer.step(worker.x, g, state, rate, self._matrices)
        worker.steps += 1
        return state

    def is_at_mark(self, worker: Worker) -> bool:
        """Return whether a mark by samples follows the worker's latest step in lock-step. None follows its last step: a
        later operation, such as an average, belongs to the output, which the mark at the end shows."""
        unit, interval = self._experiment.unit, self._experiment.mark_samples
        before, now = (marks_due(steps * unit, interval) for steps in (worker.steps - 1, worker.steps))
        return self._experiment.algo.lockstep and now > before and not self.done(worker, 0)


def parts_of(vector: Tensor | None, shards: int) -> list[Tensor | None]:
    """Split the vector of a call into one part for each shard, in order; a call without a vector has parts without."""
    return [None] * shards if vector is None else [*vector.tensor_split(shards)]


def joined(answers: Mapping[int, Tensor | None]) -> Tensor | None:
    """Return the answer of all shards to one call. answers: {shard: answer}; None for no answer."""
    parts = [part for _, part in sorted(answers.items()) if part is not None]
    return None if not parts else parts[0] if len(parts) == 1 else torch.cat(parts)


class Shard:
    """Serve one range of the vector with the algorithm's server object, and count versions to measure staleness.

    layout: the shapes of the model's parameters, which the object learns if it has an attribute of this name."""

    def __init__(self, server: Any, nodes: int, layout: Sequence[tuple[int, ...]]) -> None:
        self.server = server
        if hasattr(server, "layout"):
            server.layout = layout
        self.version = 0  # updates applied so far
        self.read = [0] * nodes  # the version that each worker last read

    def serve(
        self, rank: int, operation: str, part: Tensor | None, scalars: tuple[float, ...]
    ) -> tuple[Tensor | None, int]:
        """Run one atomic operation. Returns its answer, and the number of updates since this worker's last read."""
        arguments = scalars if part is None else (part, *scalars)
        staleness = self.version - self.read[rank]
        if hasattr(self.server, "staleness"):
            self.server.staleness = staleness
        answer = getattr(self.server, operation)(*arguments)
        self.version += part is not None
        if answer is not None:
            self.read[rank] = self.version
        return answer, staleness
