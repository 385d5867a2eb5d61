"""The snapshots of nodes that make a mark or a checkpoint, and the totals of the run computed from them."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dsgd.engines.rules.marks import Counters
from dsgd.experiment import Experiment
from dsgd.problem.problem import Problem
from dsgd.streams import stream

LAST = "last"  # the key of the mark at the end
NOTHING = Counters(0.0, "wall", 0, (), (), (), 0.0, 0)
STEP, CHECKPOINT = "step:", "checkpoint:"  # begin the keys of a lock-step mark and of a checkpoint


@dataclass(frozen=True)
class Snapshot:
    """Hold the state of one node. steps: local steps made. time_s: time on the training clock. vectors: x, buffers,
    ..."""

    steps: int
    time_s: float
    counters: dict[str, Any]
    vectors: dict[str, Tensor]
    extra: dict[str, Any]


@dataclass(frozen=True)
class RunTotals:
    """Hold the totals of a run. worker_steps: steps of each worker. missed: number of failed pulls and pushes."""

    counters: Counters
    worker_steps: list[int]
    missed: int


@dataclass
class PendingSnapshots:
    """Snapshots for one mark or checkpoint.

    key: its name in messages. missing: nodes without an arrived snapshot. time_s, samples: time and samples of the
    mark; None: taken from the snapshots. absent: last known steps and counters of nodes without a snapshot. next_marks:
    numbers of the next mark by samples and by time for a run that repeats this mark or resumes from this checkpoint;
    None for a mark without a number. floor: counters of the previous mark, lower bounds of later counters. nbytes:
    bytes of the vectors; snapshots may share a vector."""

    key: str
    missing: set[int]
    time_s: float | None = None
    samples: int | None = None
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    absent: dict[int, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    next_marks: tuple[int, int] | None = None
    floor: Counters = NOTHING
    nbytes: int = 0
    _vectors: set[int] = field(default_factory=set)

    @property
    def is_checkpoint(self) -> bool:
        return self.key.startswith(CHECKPOINT)

    @property
    def complete(self) -> bool:
        return not self.missing

    def add(self, node: int, snapshot: Snapshot) -> int:
        """Add a node's snapshot. Returns the bytes of its vectors that earlier snapshots do not share."""
        self.missing.discard(node)
        self.snapshots[node] = snapshot
        news = {id(vector): vector.nbytes for vector in snapshot.vectors.values() if id(vector) not in self._vectors}
        self._vectors |= news.keys()
        self.nbytes += sum(news.values())
        return sum(news.values())

    def give_up(self, node: int, steps: int, counters: dict[str, Any]) -> None:
        """Stop waiting for a node; its steps still count."""
        if node in self.missing:
            self.missing.discard(node)
            self.absent[node] = steps, counters

    def snapshots_of(self, nodes: Iterable[int]) -> list[Snapshot]:
        """Return the snapshots of these nodes, in their order; nodes without one are omitted."""
        return [self.snapshots[node] for node in nodes if node in self.snapshots]

    def totals(self, experiment: Experiment) -> RunTotals:
        """Return the totals of the run, absent nodes included."""
        workers = self.snapshots_of(range(experiment.nodes))
        time_s = max((s.time_s for s in workers), default=0.0) if self.time_s is None else self.time_s
        known = {**self.absent, **{node: (s.steps, s.counters) for node, s in self.snapshots.items()}}
        if experiment.budget.time_s is not None:  # a step may begin before the end and end after it
            time_s = min(time_s, experiment.budget.time_s)
        totals = combine_totals(experiment, max(time_s, self.floor.time_s), self.samples, known, self.snapshots)
        counters = _not_below(totals.counters, self.floor)
        worker_steps = totals.worker_steps
        if experiment.algo.lockstep and self.samples is not None:  # some may be ahead of the step that is meant
            worker_steps = [math.ceil(counters.samples / experiment.unit)] * experiment.nodes
        return replace(totals, counters=counters, worker_steps=worker_steps)

    def counters(self, experiment: Experiment) -> Counters:
        return self.totals(experiment).counters

    def models(self, experiment: Experiment) -> tuple[list[Tensor], list[Tensor], Tensor | None]:
        """Return every worker's vector [d] and buffers [nb], and the centre [d] of `Algorithm.output`, or None."""
        p, k, name = experiment.nodes, experiment.algo.servers, experiment.algo.output
        workers, servers = self.snapshots_of(range(p)), self.snapshots_of(range(p, p + k))
        centre = torch.cat([snapshot.vectors[name or "x"] for snapshot in servers]) if servers else None
        if name is not None and not servers:
            vectors = workers[-1].vectors
            centre = vectors.get(f"kept.{name}", vectors["x"])  # before the first step there is only x
        return [s.vectors["x"] for s in workers], [s.vectors["buffers"] for s in workers], centre

    def checkpoint(self, experiment: Experiment, progress: dict[str, Any], lost: Container[int] = ()) -> dict[str, Any]:
        """Return the contents of a checkpoint, as plain values and vectors. A lost worker has no vectors in it: the
        process that takes its place will start from the others' parameters. lost: workers that the run has lost."""
        assert self.next_marks is not None
        p, k = experiment.nodes, experiment.algo.servers
        stored: dict[int, dict[str, Any]] = {
            node: {"steps": steps, "counters": counters} for node, (steps, counters) in self.absent.items()
        }
        for node, s in self.snapshots.items():
            stored[node] = {"steps": s.steps, "counters": s.counters, "vectors": s.vectors, **s.extra}
        return {
            "time_s": self.counters(experiment).time_s,
            "progress": progress,
            "next": list(self.next_marks),
            "lost": [node for node in range(p) if node in lost],
            "workers": [stored[node] for node in range(p)],
            "servers": [stored[node] for node in range(p, p + k)],
        }


def initial_snapshots(experiment: Experiment, problem: Problem) -> PendingSnapshots:
    """Return the snapshots of all nodes before the first step."""
    p, k = experiment.nodes, experiment.algo.servers
    pending = PendingSnapshots(f"{CHECKPOINT}0", set(), 0.0, 0, next_marks=(1, 1))
    for node in range(p):
        rng = stream("algorithm", experiment.seed, node).bit_generator.state
        vectors = {"x": problem.start, "buffers": problem.start_buffers}
        pending.add(node, Snapshot(0, 0.0, {}, vectors, {"batches": 0, "rng": rng}))
    for shard, part in enumerate(problem.start.tensor_split(k) if k else ()):
        vectors = {name: part for name in ("x", experiment.algo.output) if name is not None}
        pending.add(p + shard, Snapshot(0, 0.0, {}, vectors, {}))
    return pending


def _not_below(counters: Counters, floor: Counters) -> Counters:
    """Return the counters, each at least as large as at the mark before: workers may submit a mark by time at different
    steps, before and after a step's mark. Bytes sent and received are from one moment."""
    names = ("bytes_sent", "bytes_received")
    is_below = any(sum(getattr(counters, name)) < sum(getattr(floor, name)) for name in names)
    most = {name: getattr(floor, name) for name in names} if is_below else {}
    samples, staleness = max(counters.samples, floor.samples), max(counters.staleness_max, floor.staleness_max)
    return replace(counters, samples=samples, staleness_max=staleness, **most)


def combine_totals(
    experiment: Experiment,
    time_s: float,
    samples: int | None,
    known: Mapping[int, tuple[int, Mapping[str, Any]]],
    alive: Container[int],
) -> RunTotals:
    """Combine the known steps and counters of every node into the totals of the run.

    samples: total samples; None: from the workers' steps. known: {node: (steps, counters)} of workers and servers.
    alive: nodes whose waiting counts; bytes, staleness and lost messages count for all nodes."""
    workers = {node: known[node] for node in range(experiment.nodes) if node in known}
    reported = {node: counters for node, (_, counters) in workers.items() if counters}
    staleness = [worker.get("staleness", (0, 0, 0)) for worker in reported.values()]
    total, count = (sum(worker[i] for worker in staleness) for i in range(2))
    busy = [worker["busy_s"] for node, worker in reported.items() if node in alive and time_s > 0]
    if samples is None:
        samples = experiment.samples_of(sum(steps for steps, _ in workers.values()))
    of_nodes = {node: worker for node, (_, worker) in known.items()}
    sent, received = counted_bytes(experiment.nodes, experiment.algo.servers, of_nodes)
    counters = Counters(
        time_s=time_s,
        clock="wall",
        samples=samples,
        bytes_sent=sent,
        bytes_received=received,
        idle=[max(0.0, 1 - busy_s / time_s) for busy_s in busy] or [0.0],
        staleness_mean=total / max(count, 1),
        staleness_max=max((worker[2] for worker in staleness), default=0),
    )
    worker_steps = [workers[node][0] if node in workers else 0 for node in range(experiment.nodes)]
    return RunTotals(counters, worker_steps, missed=sum(worker.get("missed", 0) for worker in reported.values()))


def counted_bytes(p: int, k: int, known: Mapping[int, Mapping[str, Any]]) -> tuple[list[int], list[int]]:
    """Return the bytes that each of p workers and k servers has sent and received. known: {node: counters}.

    The worker that began a message counts it for both ends. In a collective, each worker sends and receives a p-th of
    the bytes that all workers move in a ring, ours or NCCL's. The parts are whole numbers and add up to the total."""
    sent, received = [0] * (p + k), [0] * (p + k)
    for node, counters in known.items():
        moved = 2 * (p - 1) * counters.get("reduced", 0)
        part = moved * (node + 1) // p - moved * node // p
        for totals, name in ((sent, "sent"), (received, "received")):
            totals[node] += part
            for other, count in enumerate(counters.get(name, ())):
                totals[other] += count
    return sent, received
