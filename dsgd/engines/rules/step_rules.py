"""The rules that every engine follows of a step: when training ends, at what rate, what a step changes, after which
steps lock-step has a mark, and into how many buckets a gradient is cut, each all-reduced as soon as the backward pass
has finished it. Also what a shard of the parameter server does with a call, and the way of the call's vector."""

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
    """Return how many bytes a bucket of a gradient of n_bytes has at the least, the last one excepted."""
    return min(MOST_BYTES, max(LEAST_BYTES, ceil(n_bytes / BUCKETS)))


def bucket_count(n_bytes: float) -> int:
    """Return how many buckets that makes where a gradient can be cut anywhere; real ones are of whole parameters."""
    return ceil(n_bytes / bucket_bytes(n_bytes))


@dataclass
class StepRules:
    """Apply the budget, the schedule and the optimiser of an experiment to its workers.

    samples: in every method, the samples that all workers together have processed, as far as the engine knows. In
    lock-step they are computed from the worker's own steps instead, so that every worker uses the same rate for the
    same step and ends after the same step, whenever it gets there.
    """

    _experiment: Experiment
    _matrices: Sequence[Matrix]  # those in the parameters, in order
    _rate: tuple[int, float] = (-1, 0.0)  # the latest: after so many samples

    def done(self, worker: Worker, samples: int) -> bool:
        """Tell whether the worker has used up the budget of samples."""
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
        """Tell whether a mark by samples follows the worker's latest step in lock-step. None follows its last step:
        what comes after that, an average maybe, belongs to the output, which the mark at the end shows."""
        unit, interval = self._experiment.unit, self._experiment.mark_samples
        before, now = (marks_due(steps * unit, interval) for steps in (worker.steps - 1, worker.steps))
        return self._experiment.algo.lockstep and now > before and not self.done(worker, 0)


def parts_of(vector: Tensor | None, shards: int) -> list[Tensor | None]:
    """Split the vector of a call into one part for each shard, in order; a call without a vector has parts without."""
    return [None] * shards if vector is None else [*vector.tensor_split(shards)]


def joined(answers: Mapping[int, Tensor | None]) -> Tensor | None:
    """Return the answer of all shards to one call. answers: of each shard, by number; None where it has none."""
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
