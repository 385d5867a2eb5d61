"""In how many threads a simulation computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dsgd.experiment import Experiment
from dsgd.host.resources import omp_threads
from dsgd.problem.problem import Problem
from dsgd.problem.work import multiply_adds

# Threads that share an operation wait for each other at its end. Beside other programs one of them may have no core for
# milliseconds, which only a large operation is worth. Gradients side by side wait for each other at their ends alone,
# which is worth it for all but small ones.
SMALL, LARGE = 1_000_000, 200_000_000  # multiply-adds of a gradient


class Threads(NamedTuple):
    """Hold how many threads compute. side_by_side: gradients at a time, where the evaluator can. sharing: threads that
    share an operation where it cannot. why: one line."""

    side_by_side: int
    sharing: int
    why: str


def choose_threads(
    configured: int | None, environment: Mapping[str, str], available: int, experiment: Experiment, problem: Problem
) -> Threads:
    """Return the number of threads: `engine.threads`, else OMP_NUM_THREADS, else by the work of one gradient: all cores
    but for a small one. available: the cores of this process."""
    if configured is not None:
        return Threads(configured, configured, f"threads: {configured}, as configured")
    if (given := omp_threads(environment)) is not None:
        return Threads(given, given, f"threads: {given}, as in OMP_NUM_THREADS")
    if available == 1:
        return Threads(1, 1, "threads: 1, on the only core")
    if experiment.gradients == "none":
        return Threads(1, 1, "threads: 1, as there are no gradients")
    work = multiply_adds(problem)
    size = f"{work / 1e6:,.{0 if work >= 1e7 else 2}f} million multiply-adds a gradient"
    if work >= LARGE:
        return Threads(available, available, f"threads: {available}, all cores, as the model is large ({size})")
    more = f"(engine.threads={available} for more)"
    if work < SMALL:
        return Threads(1, 1, f"threads: 1, as the model is small: {size} {more}")
    count = min(available, experiment.nodes)
    if count == 1:
        return Threads(1, 1, f"threads: 1, as the model is not large: {size} {more}")
    return Threads(count, 1, f"threads: up to {count}, each with gradients of its own: {size}")
