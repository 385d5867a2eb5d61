"""Snapshots of the nodes, collected until those of a mark or a checkpoint are complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dsgd.engine.marks import Counters, Mark
from dsgd.experiment import Experiment
from dsgd.problem.problem import Problem
from dsgd.streams import stream

# evaluates a mark from its key, every worker's vector [d] and buffers [nb], and the centre [d], if there is one
Measure = Callable[[str, Sequence[Tensor], Sequence[Tensor], Tensor | None], Mark]


@dataclass(frozen=True)
class Snapshot:
    """State of one node. steps: local steps made. time_s: of the training clock. vectors: x, buffers, ..."""

    steps: int
    time_s: float
    counters: dict[str, Any]
    vectors: dict[str, Tensor]
    extra: dict[str, Any]

    @property
    def nbytes(self) -> int:
        return sum(vector.nbytes for vector in self.vectors.values())


@dataclass
class PendingSnapshots:
    """Snapshots for one mark or checkpoint. key: by which the nodes name it. missing: nodes whose snapshot has not
    arrived. time_s, samples: of the mark; None: taken from the snapshots. lost_steps: of workers without a snapshot.
    next_marks: the next mark by samples and by time, when a checkpoint was requested."""

    key: str
    missing: set[int]
    time_s: float | None = None
    samples: int | None = None
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    lost_steps: dict[int, int] = field(default_factory=dict)
    next_marks: tuple[int, int] = (1, 1)

    @property
    def is_checkpoint(self) -> bool:
        return self.key.startswith("checkpoint")

    @property
    def complete(self) -> bool:
        return not self.missing

    @property
    def nbytes(self) -> int:
        return sum(snapshot.nbytes for snapshot in self.snapshots.values())

    def add(self, node: int, snapshot: Snapshot) -> None:
        self.missing.discard(node)
        self.snapshots[node] = snapshot

    def give_up(self, node: int, steps: int) -> None:
        """Stop waiting for a node; the steps that it made count all the same."""
        if node in self.missing:
            self.missing.discard(node)
            self.lost_steps[node] = steps

    def of(self, nodes: Iterable[int]) -> list[Snapshot]:
        """Return the snapshots of these nodes, in their order; nodes without one are left out."""
        return [self.snapshots[node] for node in nodes if node in self.snapshots]

    def counters(self, experiment: Experiment) -> Counters:
        workers = self.of(range(experiment.nodes))
        time_s = max(s.time_s for s in workers) if self.time_s is None else self.time_s
        lost = [steps for node, steps in self.lost_steps.items() if node < experiment.nodes]
        steps = sum(s.steps for s in workers) + sum(lost)
        samples = steps * experiment.batch_size if self.samples is None else self.samples
        return combine_counters(experiment, time_s, samples, {node: s.counters for node, s in self.snapshots.items()})

    def measured(self, experiment: Experiment, measure: Measure) -> Mark:
        """Evaluate the fields of this mark."""
        p, k = experiment.nodes, experiment.algo.servers
        workers, servers = self.of(range(p)), self.of(range(p, p + k))
        centre = torch.cat([snapshot.vectors["x"] for snapshot in servers]) if servers else None
        xs = [snapshot.vectors["x"] for snapshot in workers]
        buffers = [snapshot.vectors["buffers"] for snapshot in workers]
        return self.counters(experiment).fields(experiment) | measure(self.key, xs, buffers, centre)

    def checkpoint(self, experiment: Experiment, progress: dict[str, Any]) -> dict[str, Any]:
        """Return the contents of a checkpoint, as plain values and vectors. A lost worker is None: it will start from
        the others' parameters."""
        p, k = experiment.nodes, experiment.algo.servers
        found = self.of(range(p))
        stored = {
            node: {"steps": s.steps, "counters": s.counters, "vectors": s.vectors, **s.extra}
            for node, s in self.snapshots.items()
        }
        return {
            "time_s": max(snapshot.time_s for snapshot in found),
            "steps": max(snapshot.steps for snapshot in found),
            "progress": progress,
            "next": list(self.next_marks),
            "workers": [stored.get(node) for node in range(p)],
            "servers": [stored[node] for node in range(p, p + k) if node in stored],
        }


def initial_snapshots(experiment: Experiment, problem: Problem) -> PendingSnapshots:
    """Return what all nodes would submit before the first step."""
    p, k = experiment.nodes, experiment.algo.servers
    pending = PendingSnapshots("checkpoint:0", set(), 0.0, 0)
    for node in range(p):
        rng = stream("algorithm", experiment.seed, node).bit_generator.state
        vectors = {"x": problem.start, "buffers": problem.start_buffers}
        pending.add(node, Snapshot(0, 0.0, {}, vectors, {"batches": 0, "rng": rng}))
    for shard, part in enumerate(problem.start.tensor_split(k) if k else ()):
        pending.add(p + shard, Snapshot(0, 0.0, {}, {"x": part}, {}))
    return pending


def combine_counters(
    experiment: Experiment, time_s: float, samples: int, counters: Mapping[int, Mapping[str, Any]]
) -> Counters:
    """Combine the counters of workers and servers, by node, into those of the run."""
    workers = [counters[node] for node in range(experiment.nodes) if counters.get(node)]
    staleness = [own["staleness"] for own in workers if "staleness" in own]
    total, count = (sum(own[i] for own in staleness) for i in range(2))
    idle = [max(0.0, 1 - own["busy_s"] / time_s) for own in workers if time_s > 0] or [0.0]
    sent = [own.get("bytes_sent", 0) for own in counters.values()] or [0]
    largest = max((own[2] for own in staleness), default=0)
    return Counters(time_s, "wall", samples, sent, idle, total / max(count, 1), largest)
