"""Choice of the evaluator of a simulation."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dsgd.experiment import Experiment
from dsgd.gradients.loop import LoopEvaluator
from dsgd.gradients.null import NullEvaluator
from dsgd.gradients.pending import GradientEvaluator
from dsgd.gradients.stacked import StackedEvaluator, chosen_device
from dsgd.gradients.tracing import Unstackable
from dsgd.gradients.vmap import VmapEvaluator
from dsgd.host.resources import keep_freed_memory
from dsgd.problem.precision import compiling, prepare, tolerate_missing
from dsgd.problem.problem import Problem


@dataclass(frozen=True)
class ChosenEvaluator:
    """An evaluator and its name: stacked | vmap | loop | none.

    why: one line on the choice, None if it is the one asked for and has nothing to tell."""

    evaluator: GradientEvaluator
    name: str
    why: str | None = None


def choose_evaluator(experiment: Experiment, problem: Problem) -> ChosenEvaluator:
    """Build the evaluator asked for, or the next of stacked, vmap, loop that can serve the module."""
    name = experiment.gradients
    if name == "none":
        return ChosenEvaluator(NullEvaluator(), name)
    device = chosen_device(experiment.device)
    prepare(experiment.precision, device)
    tolerate_missing(device)
    keep_freed_memory()
    # a loss that is more than the cross entropy of outputs may have tensors of its own, and these are on the CPU
    loop_device = device if problem.data.classes is not None else torch.device("cpu")
    option = _option_of_loop(experiment)
    if name == "loop" or option is not None:
        loop = LoopEvaluator(problem, loop_device)
        if experiment.compile:
            with compiling(type(problem.module).__name__):
                problem.gradient(problem.start.to(loop_device), problem.start_buffers.to(loop_device, copy=True), 0, 0)
        why = f"gradients: loop, because {option} is for one model at a time"
        return ChosenEvaluator(loop, "loop", why if name != "loop" else None)
    why = None
    if name == "stacked":
        try:
            stacked = StackedEvaluator(problem, experiment.stack_size, experiment.nodes, device)
            torch.set_num_threads(stacked.threads.threads_each)
            most = stacked.sizes[-1]
            why = f"gradients: stacked, {most} model{'s'[: most > 1]} in one call on {device}"
            return ChosenEvaluator(stacked, name, why)
        except Unstackable as error:
            why = f"stacked does not know {error}"
    vmap = VmapEvaluator(problem)
    failed = vmap.failure()
    if failed is None:
        return ChosenEvaluator(vmap, "vmap", why and f"gradients: vmap, because {why}")
    why = f"gradients: loop, because {f'{why}, and ' if why else ''}vmap fails: {failed}"
    return ChosenEvaluator(LoopEvaluator(problem, loop_device), "loop", why)


def _option_of_loop(experiment: Experiment) -> str | None:
    """Return the option, if any, that only the module by itself supports."""
    if experiment.precision in ("bf16", "fp16"):
        return f"precision={experiment.precision}"
    if experiment.channels_last:
        return "channels_last=true"
    return "compile=true" if experiment.compile else None
