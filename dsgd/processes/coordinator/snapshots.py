"""What workers and servers hand in at a mark or for a checkpoint, until everybody's has come."""

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

# what a mark finds: its key, every worker's vector [d] and buffers [nb], and the centre [d], if there is one
Measure = Callable[[str, Sequence[Tensor], Sequence[Tensor], Tensor | None], Mark]


@dataclass(frozen=True)
class Snapshot:
    """steps: local steps made. time_s: of the training clock. counters: of this node. vectors: x, buffers, ..."""

    steps: int
    time_s: float
    counters: dict[str, Any]
    vectors: dict[str, Tensor]
    extra: dict[str, Any]

    @property
    def size(self) -> int:
        return sum(vector.nbytes for vector in self.vectors.values())


@dataclass
class Gathering:
    """key: what the nodes call it. missing: nodes whose snapshot has not come. time_s, samples: of the mark; None: the
    snapshots tell."""

    key: str
    missing: set[int]
    time_s: float | None = None
    samples: int | None = None
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    gone: dict[int, int] = field(default_factory=dict)  # steps of workers that were lost
    marks_before: tuple[int, int] = (1, 1)  # the next mark by samples and by time when it was asked for

    @property
    def is_checkpoint(self) -> bool:
        return self.key.startswith("checkpoint")

    def give_up(self, node: int, steps: int) -> None:
        """This node's snapshot will not come; the steps that it made count all the same."""
        if node in self.missing:
            self.missing.discard(node)
            self.gone[node] = steps

    def add(self, node: int, snapshot: Snapshot) -> None:
        self.missing.discard(node)
        self.snapshots[node] = snapshot

    @property
    def complete(self) -> bool:
        return not self.missing

    def of(self, nodes: Iterable[int]) -> list[Snapshot]:
        """The snapshots of those nodes, in their order, as far as there are any."""
        return [self.snapshots[node] for node in nodes if node in self.snapshots]

    def counters(self, experiment: Experiment) -> Counters:
        workers = self.of(range(experiment.nodes))
        time_s = max(s.time_s for s in workers) if self.time_s is None else self.time_s
        steps = sum(s.steps for s in workers) + sum(
            steps for node, steps in self.gone.items() if node < experiment.nodes
        )
        samples = steps * experiment.batch_size if self.samples is None else self.samples
        return combined(experiment, time_s, samples, {node: s.counters for node, s in self.snapshots.items()})

    def evaluated(self, experiment: Experiment, measure: Measure) -> Mark:
        """The measured fields of this mark."""
        p, k = experiment.nodes, experiment.algo.servers
        workers, servers = self.of(range(p)), self.of(range(p, p + k))
        centre = torch.cat([snapshot.vectors["x"] for snapshot in servers]) if servers else None
        xs = [snapshot.vectors["x"] for snapshot in workers]
        buffers = [snapshot.vectors["buffers"] for snapshot in workers]
        return self.counters(experiment).fields(experiment) | measure(self.key, xs, buffers, centre)

    def checkpoint(self, experiment: Experiment, progress: dict[str, Any]) -> dict[str, Any]:
        """Everything that is needed to go on from here, as plain values and vectors. A worker that was lost is None: it
        will begin where the others are."""
        p, k = experiment.nodes, experiment.algo.servers
        workers = [self.snapshots.get(node) for node in range(p)]
        found = [snapshot for snapshot in workers if snapshot is not None]
        return {
            "time_s": max(snapshot.time_s for snapshot in found),
            "steps": max(snapshot.steps for snapshot in found),
            "progress": progress,
            "next": list(self.marks_before),
            "workers": [
                s and {"steps": s.steps, "counters": s.counters, "vectors": s.vectors, **s.extra} for s in workers
            ],
            "servers": [
                {"counters": snapshot.counters, "vectors": snapshot.vectors} for snapshot in self.of(range(p, p + k))
            ],
        }


def beginning(experiment: Experiment, problem: Problem) -> Gathering:
    """What all would hand in before the first step."""
    p, k = experiment.nodes, experiment.algo.servers
    gathering = Gathering("checkpoint:0", set(), 0.0, 0)
    for node in range(p):
        rng = stream("algorithm", experiment.seed, node).bit_generator.state
        vectors = {"x": problem.start, "buffers": problem.start_buffers}
        gathering.add(node, Snapshot(0, 0.0, {}, vectors, {"batches": 0, "rng": rng}))
    for shard, part in enumerate(problem.start.tensor_split(k) if k else ()):
        gathering.add(p + shard, Snapshot(0, 0.0, {}, {"x": part}, {}))
    return gathering


def combined(
    experiment: Experiment, time_s: float, samples: int, counters: Mapping[int, Mapping[str, Any]]
) -> Counters:
    """The counters of a run from those of its workers and servers, by node."""
    workers = [counters[node] for node in range(experiment.nodes) if counters.get(node)]
    staleness = [own["staleness"] for own in workers if "staleness" in own]
    total, count = (sum(own[i] for own in staleness) for i in range(2))
    idle = [max(0.0, 1 - own["busy_s"] / time_s) for own in workers if time_s > 0] or [0.0]
    sent = [own.get("bytes_sent", 0) for own in counters.values()] or [0]
    largest = max((own[2] for own in staleness), default=0)
    return Counters(time_s, "wall", samples, sent, idle, total / max(count, 1), largest)
