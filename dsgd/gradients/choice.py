"""Chooses the evaluator of a simulation: what is asked for, or the next best that can serve the module."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dsgd.experiment import Experiment
from dsgd.gradients.loop import Loop
from dsgd.gradients.null import Nothing
from dsgd.gradients.pending import Evaluator
from dsgd.gradients.stacked import Stacked, chosen_device
from dsgd.gradients.stacking import Unstackable
from dsgd.gradients.vmap import Vmap
from dsgd.host.resources import keep_freed_memory
from dsgd.problem.precision import compiling, prepare
from dsgd.problem.problem import Problem


@dataclass(frozen=True)
class Chosen:
    """name: stacked | vmap | loop | none. why: one line on the choice, None if it is what was asked for by name."""

    evaluator: Evaluator
    name: str
    why: str | None = None


def build_evaluator(name: str, problem: Problem) -> Evaluator:
    """name: stacked | vmap | loop | none. Raises ValueError for a module that cannot be stacked."""
    return {"loop": Loop, "vmap": Vmap, "stacked": Stacked, "none": Nothing}[name](problem)


def choose(experiment: Experiment, problem: Problem) -> Chosen:
    """What the experiment asks for, or the next best that can serve this module: stacked, vmap, loop."""
    name = experiment.gradients
    if name == "none":
        return Chosen(build_evaluator(name, problem), name)
    device = chosen_device(experiment.device)
    prepare(experiment.precision, device)
    keep_freed_memory()
    # a loss that is more than the cross entropy of outputs may have tensors of its own, and these are on the CPU
    of_loop = device if problem.data.classes is not None else torch.device("cpu")
    alone = _alone(experiment)
    if name == "loop" or alone is not None:
        loop = Loop(problem, of_loop)
        if experiment.compile:
            with compiling(type(problem.module).__name__):
                problem.gradient(problem.start.to(of_loop), problem.start_buffers.to(of_loop, copy=True), 0, 0)
        why = f"gradients: loop, because {alone} is for one model at a time"
        return Chosen(loop, "loop", why if name != "loop" else None)
    why = None
    if name == "stacked":
        try:
            stacked = Stacked(problem, experiment.stack_size, experiment.nodes, device)
            torch.set_num_threads(stacked.lanes.share)
            most = stacked.sizes[-1]
            return Chosen(stacked, name, f"gradients: stacked, {most} model{'s'[: most > 1]} in one call on {device}")
        except Unstackable as error:
            why = f"stacked does not know {error}"
    vmap = Vmap(problem)
    failed = vmap.failure()
    if failed is None:
        return Chosen(vmap, "vmap", why and f"gradients: vmap, because {why}")
    why = f"{why}, and " if why else ""
    return Chosen(Loop(problem, of_loop), "loop", f"gradients: loop, because {why}vmap fails: {failed}")


def _alone(experiment: Experiment) -> str | None:
    """The option, if any, with which the module itself must be run."""
    if experiment.precision in ("bf16", "fp16"):
        return f"precision={experiment.precision}"
    if experiment.channels_last:
        return "channels_last=true"
    return "compile=true" if experiment.compile else None
