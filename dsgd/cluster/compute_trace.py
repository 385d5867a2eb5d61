"""Measured gradient times of the ranks of a run: `cluster.compute_trace`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import fmean

from dsgd.cluster.disturbances import LONGEST_S
from dsgd.cluster.trace_file import read_rows, whole

KEY = "compute_trace"


@dataclass(frozen=True)
class ComputeTrace:
    """Seconds of computing of every rank in every step: seconds[rank][step]. path: of its file."""

    path: str
    seconds: tuple[tuple[float, ...], ...]

    @staticmethod
    def read(path: str) -> ComputeTrace:
        """Read a csv file `step,rank,seconds`, one line for each rank in each step, in any order. The numbers of the
        steps may leave some out, those of the ranks may not. Raises ValueError naming the line."""
        times: dict[tuple[int, int], float] = {}
        for where, (step, rank, seconds) in read_rows(path, KEY, ("step", "rank", "seconds")):
            position = whole(rank, "rank", KEY, where), whole(step, "step", KEY, where)
            if position in times:
                raise ValueError(f"{KEY} must have each rank once in a step, got {rank:g} in {step:g} again {where}")
            if not 0 < seconds <= LONGEST_S:
                raise ValueError(f"{KEY} must have seconds in (0, {LONGEST_S:g}], got {seconds:g} {where}")
            times[position] = seconds
        ranks, steps = 1 + max(rank for rank, _ in times), sorted({step for _, step in times})
        if len(times) < ranks * len(steps):
            missing = ((rank, step) for step in steps for rank in range(ranks) if (rank, step) not in times)
            rank, step = next(missing)
            raise ValueError(f"{KEY} must have every rank in every step, got no rank {rank} in step {step} ({path})")
        return ComputeTrace(path, tuple(tuple(times[rank, step] for step in steps) for rank in range(ranks)))

    @cached_property
    def mean_s(self) -> float:
        """Return the mean of all times."""
        return fmean(chain.from_iterable(self.seconds))

    @cached_property
    def longest_s(self) -> float:
        """Return the longest time."""
        return max(chain.from_iterable(self.seconds))

    def check(self, nodes: int) -> None:
        """Raise ValueError if the ranks are too few to tell how `nodes` workers differ."""
        if len(self.seconds) < min(nodes, 2):
            rule = f"{KEY} must have at least 2 ranks (nodes={nodes}), as one tells nothing about the others"
            raise ValueError(f"{rule}, got {len(self.seconds)} ({self.path})")
