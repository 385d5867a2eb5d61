"""Choice of the evaluator of a simulation."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dsgd.experiment import Experiment
from dsgd.gradients.compiled import CompiledEvaluator
from dsgd.gradients.examination import deviation, reason_for_the_loop
from dsgd.gradients.graphs import GraphEvaluator, Uncapturable
from dsgd.gradients.loop import LoopEvaluator
from dsgd.gradients.null import NullEvaluator
from dsgd.gradients.pending import GradientEvaluator
from dsgd.gradients.stacked import StackedEvaluator, chosen_device
from dsgd.gradients.tracing import Unstackable
from dsgd.host.resources import keep_freed_memory
from dsgd.problem.precision import compiling, prepare, tolerate_missing
from dsgd.problem.problem import Problem


@dataclass(frozen=True)
class ChosenEvaluator:
    """An evaluator and its name: compiled | stacked | loop | graphs | none.

    why: one line on the choice, None if it is the one asked for and has nothing to tell. instead: of the one asked for,
    which cannot serve."""

    evaluator: GradientEvaluator
    name: str
    why: str | None = None
    instead: bool = False


def choose_evaluator(experiment: Experiment, problem: Problem) -> ChosenEvaluator:
    """Build the evaluator asked for, or the next of graphs, loop or of compiled, stacked, loop that can serve the
    module. auto: graphs on a GPU, otherwise compiled."""
    name = experiment.gradients
    if name == "none":
        return ChosenEvaluator(NullEvaluator(), name)
    device = chosen_device(experiment.device)
    prepare(experiment.precision, device)
    tolerate_missing(device)
    keep_freed_memory()
    # data without classes are quadratics, too small for a GPU
    loop_device = device if problem.data.classes is not None else torch.device("cpu")
    if name == "auto":
        name = "graphs" if loop_device.type == "cuda" else "compiled"
    option = _option_of_loop(experiment, name)
    if name == "loop" or option is not None:
        loop = LoopEvaluator(problem, loop_device)
        if experiment.compile:
            with compiling(type(problem.module).__name__):
                problem.gradient(problem.start.to(loop_device), problem.start_buffers.to(loop_device, copy=True), 0, 0)
        fixed = "is no CUDA graph" if name == "graphs" else "is for one model at a time"
        why = f"gradients: loop, because {option} {fixed}"
        return ChosenEvaluator(loop, "loop", why if name != "loop" else None, instead=name != "loop")
    reason = reason_for_the_loop(problem, loop_device)
    if reason is not None:
        return _loop(problem, loop_device, f"{name} does not serve {reason}")
    why, instead = None, False
    if name == "graphs":
        try:
            graphs = GraphEvaluator(problem, loop_device)
        except Uncapturable as error:
            return _loop(problem, loop_device, f"a gradient is no CUDA graph: {error}")
        if wrong := deviation(problem, graphs):
            return _loop(problem, loop_device, f"graphs does not serve {wrong}")
        return ChosenEvaluator(graphs, name, f"gradients: graphs, on {loop_device}")
    if name == "compiled":
        try:
            compiled = CompiledEvaluator(problem, experiment.nodes, device)
            if wrong := deviation(problem, compiled):
                raise Unstackable(wrong)
            problem.predict = compiled.predict
            torch.set_num_threads(compiled.threads.threads_each)
            return ChosenEvaluator(compiled, name, f"gradients: compiled, by {compiled.extension} on {device}")
        except Unstackable as error:
            instead = experiment.gradients == name
            why = f"compiled does not know {error}"
            name = "stacked"
    try:
        stacked = StackedEvaluator(problem, experiment.stack_size, experiment.nodes, device)
        if wrong := deviation(problem, stacked):
            raise Unstackable(wrong)
        torch.set_num_threads(stacked.threads.threads_each)
        most = stacked.sizes[-1]
        line = f"gradients: stacked, {most} model{'s'[: most > 1]} in one call on {device}"
        return ChosenEvaluator(stacked, "stacked", f"{line}, because {why}" if instead else line, instead)
    except Unstackable as error:
        return _loop(problem, loop_device, f"stacked does not know {error}")


def _loop(problem: Problem, device: torch.device, why: str) -> ChosenEvaluator:
    """Return the loop, instead of what was asked for."""
    return ChosenEvaluator(LoopEvaluator(problem, device), "loop", f"gradients: loop, because {why}", instead=True)


def _option_of_loop(experiment: Experiment, name: str) -> str | None:
    """Return the option, if any, that only the module by itself supports. name: of the evaluator asked for."""
    of_loop = ("fp16",) if name == "graphs" else ("bf16", "fp16")
    if experiment.precision in of_loop:
        return f"precision={experiment.precision}"
    if experiment.channels_last and name != "graphs":
        return "channels_last=true"
    return "compile=true" if experiment.compile else None
