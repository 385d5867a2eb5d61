"""Measure how long a gradient takes on this machine, one model at a time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from dsgd.experiment import Experiment
from dsgd.host.gpu_facts import chosen_device
from dsgd.host.resources import keep_freed_memory
from dsgd.problem.precision import compiling, compute_deterministically, prepare
from dsgd.problem.problem import Problem

WARM_UP = 3  # gradients that do not count, fewer of a large model: memory is taken and kernels are chosen in them
LEAST, MOST = 5, 100  # gradients that count
ENOUGH_S = 0.3  # in which they are measured, and STEADY_S where they hardly differ
STEADY_S = 0.05
HARDLY = 0.1  # between the quartiles, as a part of the median
SERIES = 8  # of gradients, at most: beside other programs the fastest ones tell what a gradient takes
AGREE = 0.05  # of two series, as a part of the faster one's median


class Duration(NamedTuple):
    """Hold how long a gradient takes. slowest: median of the slowest series. steady: whether two series agree."""

    seconds: float
    slowest: float
    steady: bool


def gradient_duration(experiment: Experiment, problem: Problem, threads: int) -> Duration:
    """Measure the seconds that forward and backward pass of one mini-batch take, on the device and in the arithmetic of
    the experiment: the median of the fastest series of gradients.

    Leaves torch's settings and the problem as they are then, so call it in a process of its own. Raises ValueError for
    a device or a compiler that is not here."""
    compute_deterministically()
    torch.set_num_threads(threads)
    keep_freed_memory()
    # where `choose_evaluator` computes gradients one at a time
    device = torch.device("cpu") if problem.data.classes is None else chosen_device(experiment.device)
    prepare(experiment.precision, device)
    problem.to(device)
    inputs, targets = (part.to(device) for part in problem.data.batch(0, 0))
    x, buffers = problem.start.to(device, copy=True), problem.start_buffers.to(device, copy=True)

    def timed() -> float:
        begin = time.perf_counter()
        problem.gradient_of_batch(x, buffers, inputs, targets)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    def repeated(least: int, most: int) -> list[float]:
        times: list[float] = []
        while len(times) < least or (len(times) < most and sum(times) < ENOUGH_S and not are_steady(times)):
            times.append(timed())
        return times

    if experiment.compile:
        with compiling(type(problem.module).__name__):
            timed()
    repeated(1, WARM_UP)
    return fastest(lambda: repeated(LEAST, MOST))


def fastest(series: Callable[[], Sequence[float]]) -> Duration:
    """Measure series of gradients until the two fastest agree, or there are SERIES. series: measures one."""
    medians: list[float] = []
    while len(medians) < SERIES:
        medians = sorted([*medians, statistics.median(series())])
        if len(medians) > 1 and medians[1] - medians[0] <= AGREE * medians[0]:
            return Duration(medians[0], medians[-1], True)
    return Duration(medians[0], medians[-1], False)


def are_steady(times: Sequence[float]) -> bool:
    """Return whether further gradients would hardly change the median, as on a machine with nothing else to do."""
    if len(times) < LEAST or sum(times) < STEADY_S:
        return False
    first, median, third = statistics.quantiles(times, n=4)
    return third - first <= HARDLY * median
