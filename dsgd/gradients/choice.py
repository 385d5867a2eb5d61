"""Choice of the evaluator of a simulation, and of the number of threads; and the gradient time here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dsgd.experiment import Experiment
from dsgd.gradients.compiled import CompiledEvaluator, bf16_is_there
from dsgd.gradients.device_graphs import GraphEvaluator, Uncapturable
from dsgd.gradients.evaluators import GradientEvaluator, LoopEvaluator, NullEvaluator
from dsgd.gradients.examination import deviation, reason_for_the_loop, serves_side_by_side
from dsgd.gradients.tracing import Untranslatable
from dsgd.host.gpu_facts import chosen_device
from dsgd.host.resources import keep_freed_memory, omp_threads
from dsgd.problem.precision import compiling, compute_deterministically, prepare
from dsgd.problem.problem import Problem
from dsgd.problem.slots import ModelFailed

# Multiply-adds of a forward pass of one batch from which `auto` takes a GPU. Python queues about 5,000 replays of a
# graph a second; the kernels, at 2e10 multiply-adds a second with three times as many in a gradient as in its forward
# pass, make as many gradients of this work. `benchmarks/gpu.py threshold` measures it on a GPU.
GRAPH_WORK = 1_500_000

# Threads that share an operation wait for each other at its end. While other programs run, a thread may have no core
# for milliseconds, which only a large operation outweighs. Gradients computed in parallel wait for each other only at
# their ends, which is worth it for all but small ones.
SMALL, LARGE = 1_000_000, 200_000_000  # multiply-adds of a gradient
WARM_UP = 3  # gradients that do not count, fewer of a large model: memory is taken and kernels are chosen in them
LEAST, MOST = 5, 100  # gradients that count
ENOUGH_S = 0.3  # time of measuring, or STEADY_S if they hardly differ
STEADY_S = 0.05
HARDLY = 0.1  # between the quartiles, as a part of the median
SERIES = 8  # gradients of a series, at most: while other programs run, the fastest ones are the gradient's time
AGREE = 0.05  # difference of two series, as a part of the faster series' median


@dataclass(frozen=True)
class ChosenEvaluator:
    """An evaluator and its name: compiled | loop | graphs | none.

    threads: number of computing threads. why: one line on the choice; None if the requested evaluator serves without a
    remark. instead: True if it replaces the requested evaluator, which cannot serve."""

    evaluator: GradientEvaluator
    name: str
    threads: int
    why: str | None = None
    instead: bool = False


def choose_evaluator(experiment: Experiment, problem: Problem, cores: int | None = None) -> ChosenEvaluator:
    """Build the requested evaluator, or the loop if it cannot serve the module. auto: graphs on a GPU from GRAPH_WORK
    on, otherwise compiled, on the CPU unless the GPU was requested.

    cores: cores for parallel gradients; None: as many as torch has threads. Gradients that cannot be computed in
    parallel use torch's threads instead."""
    name, torch_threads = experiment.gradients, torch.get_num_threads()
    cores = cores or torch_threads
    if name == "none":
        return ChosenEvaluator(NullEvaluator(), name, torch_threads)
    device = chosen_device(experiment.device)
    if name == "auto" and experiment.device == "auto" and device.type != "cpu":
        device = device_of_auto(problem, experiment.precision, device)
    prepare(experiment.precision, device)
    keep_freed_memory()
    # data without classes are quadratics, too small for a GPU
    loop_device = device if problem.data.classes is not None else torch.device("cpu")
    if name == "auto":
        name = "graphs" if loop_device.type != "cpu" else "compiled"
    option = _option_of_loop(experiment, name)
    loop = partial(_loop, experiment, problem, loop_device, cores)
    if name == "loop" or option is not None:
        if experiment.compile:
            with compiling(type(problem.module).__name__):
                problem.gradient(problem.start.to(loop_device), problem.start_buffers.to(loop_device, copy=True), 0, 0)
        fixed = "is no CUDA graph" if name == "graphs" else "is for one model at a time"
        return loop(f"{option} {fixed}" if name != "loop" else None)
    reason = reason_for_the_loop(problem, loop_device)
    if reason is not None:
        return loop(f"{name} does not serve {reason}")
    if name == "graphs":
        try:
            graphs = GraphEvaluator(problem, loop_device)
        except Uncapturable as error:
            return loop(f"a gradient is no CUDA graph: {error}")
        if problem.state.in_place and (wrong := deviation(problem, graphs)):
            return loop(f"graphs does not serve {wrong}")
        return ChosenEvaluator(graphs, name, torch_threads, f"gradients: graphs, on {loop_device}")
    try:
        compiled = CompiledEvaluator(problem, experiment.nodes, device, cores)
        if problem.state.in_place and (wrong := deviation(problem, compiled)):
            raise Untranslatable(wrong)
    except Untranslatable as error:
        return loop(f"compiled does not know {error}")
    problem.predict = compiled.predict
    torch.set_num_threads(compiled.threads.threads_each)
    line = f"gradients: compiled, by {compiled.extension} on {device}"
    return ChosenEvaluator(compiled, name, compiled.threads.total, line)


def device_of_auto(problem: Problem, precision: str, device: torch.device) -> torch.device:
    """Return the device of gradients if neither evaluator nor device is chosen: this one if it is worth it, or if only
    it has the precision."""
    small = precision in ("fp32", "fp64") and multiply_adds(problem) < GRAPH_WORK
    return torch.device("cpu") if small else device


def _loop(
    experiment: Experiment, problem: Problem, device: torch.device, cores: int, why: str | None
) -> ChosenEvaluator:
    """Return the loop. why: reason why it replaces the requested evaluator; None: the loop was requested."""
    cores = min(cores, experiment.nodes) if device.type == "cpu" else 1
    loop = LoopEvaluator(problem, device, cores if cores > 1 and serves_side_by_side(problem) else 1)
    torch.set_num_threads(loop.threads.threads_each)
    line = None if why is None else f"gradients: loop, because {why}"
    return ChosenEvaluator(loop, "loop", loop.threads.total, line, instead=why is not None)


def _option_of_loop(experiment: Experiment, name: str) -> str | None:
    """Return the option, if any, that only the module itself supports. name: name of the requested evaluator."""
    precision = experiment.precision
    serves_bf16 = precision == "bf16" and (name == "graphs" or (name == "compiled" and bf16_is_there()))
    if precision in ("bf16", "fp16") and not serves_bf16:
        return f"precision={precision}"
    if experiment.channels_last and name != "graphs":
        return "channels_last=true"
    return "compile=true" if experiment.compile else None


@torch.no_grad()
def multiply_adds(problem: Problem) -> int:
    """Return the multiply-adds of the layers with weights in the forward pass of one batch; the backward pass takes
    about twice as many."""
    inputs, _ = problem.data.batch(0, 0)
    with suppress(ModelFailed):  # without a copy: each pass of a run sets its vectors first
        problem = problem.twin()
    problem.state.train(False)
    module, counts = problem.module, []

    def count(layer: nn.Module, arguments: Any, output: Any) -> None:
        each = [weight.numel() // len(weight) for weight in layer.parameters(recurse=False) if weight.dim() > 0]
        if each and isinstance(output, Tensor):
            counts.append(output.numel() * max(each))  # every output is a sum over the weights of its channel

    if isinstance(module, torch.jit.ScriptModule):  # has no hooks: as if each weight served once
        return len(inputs) * sum(weight.numel() for weight in module.parameters() if weight.dim() > 1)
    # an embedding looks its weights up
    uncounted = nn.Embedding, torch.jit.ScriptModule
    hooks = [layer.register_forward_hook(count) for layer in module.modules() if not isinstance(layer, uncounted)]
    with torch.random.fork_rng(devices=[]):
        module(inputs[:1])
    for hook in hooks:
        hook.remove()
    return sum(counts) * len(inputs)


class Threads(NamedTuple):
    """Hold the numbers of threads. side_by_side: parallel gradients, if the evaluator supports them. sharing: threads
    that share an operation otherwise. why: one line."""

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


class Duration(NamedTuple):
    """Hold the time of a gradient. slowest: median of the slowest series. steady: whether two series agree."""

    seconds: float
    slowest: float
    steady: bool


def gradient_duration(experiment: Experiment, problem: Problem, threads: int) -> Duration:
    """Measure the seconds that forward and backward pass of one mini-batch take, on the device and in the arithmetic of
    the experiment: the median of the fastest series of gradients.

    Changes torch's settings and the problem, so call it in a separate process. Raises ValueError for a missing device
    or compiler."""
    compute_deterministically()
    torch.set_num_threads(threads)
    keep_freed_memory()
    # if `choose_evaluator` computes gradients one at a time
    device = torch.device("cpu") if problem.data.classes is None else chosen_device(experiment.device)
    prepare(experiment.precision, device)
    problem.to(device)
    inputs, targets = (part.to(device) for part in problem.data.batch(0, 0))
    x, buffers = problem.start.to(device, copy=True), problem.start_buffers.to(device, copy=True)

    def timed() -> float:
        begin = time.perf_counter()
        problem.gradient_of_batch(x, buffers, inputs, targets)
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
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
    """Return whether further gradients would hardly change the median, as on an idle machine."""
    if len(times) < LEAST or sum(times) < STEADY_S:
        return False
    first, median, third = statistics.quantiles(times, n=4)
    return third - first <= HARDLY * median
