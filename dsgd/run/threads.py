"""In how many threads a simulation computes."""

from __future__ import annotations

from collections.abc import Mapping

from dsgd.experiment import Experiment
from dsgd.gradients.stacked import threads_with_stacks
from dsgd.host.resources import omp_threads
from dsgd.problem.problem import Problem
from dsgd.problem.work import multiply_adds

# Threads that share an operation wait for each other at its end. Beside other programs one of them may have no core for
# milliseconds, which only a large operation is worth.
SMALL, LARGE = 1_000_000, 200_000_000  # multiply-adds of a gradient


def choose_threads(
    configured: int | None, environment: Mapping[str, str], available: int, experiment: Experiment, problem: Problem
) -> tuple[int, str]:
    """Return the number of threads, and one line that says why: `engine.threads`, else OMP_NUM_THREADS, else by the
    work of one gradient. A large model takes all cores, a small one a thread, those between as many as have stacks of
    models to themselves. available: the cores of this process."""
    if configured is not None:
        return configured, f"threads: {configured}, as configured"
    if (given := omp_threads(environment)) is not None:
        return given, f"threads: {given}, as in OMP_NUM_THREADS"
    if available == 1:
        return 1, "threads: 1, on the only core"
    if experiment.gradients == "none":
        return 1, "threads: 1, as there are no gradients"
    work = multiply_adds(problem)
    size = f"{work / 1e6:,.{0 if work >= 1e7 else 2}f} million multiply-adds a gradient"
    if work >= LARGE:
        return available, f"threads: {available}, all cores, as the model is large ({size})"
    more = f"(engine.threads={available} for more)"
    if work < SMALL:
        return 1, f"threads: 1, as the model is small: {size} {more}"
    threads = 1
    if experiment.gradients in ("auto", "compiled", "stacked"):
        threads = threads_with_stacks(problem, experiment.stack_size, experiment.nodes, available)
    if threads > 1:
        return threads, f"threads: {threads}, each with models of its own"
    return 1, f"threads: 1, as the model is not large: {size} {more}"
