"""What evaluates gradients for the simulator: several workers' at once, later than they were asked for.

An evaluator gets all gradients that are wanted and not yet known. It may compute them in any grouping; in what order,
or together with which others, must not change a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from dsgd.experiment import Experiment
    from dsgd.gradients.problem import Problem


class Wanted:
    """A gradient that was asked for. snapshot: [d], where to take it; buffers: [nb], a copy that the forward pass may
    change; rank, step: whose batch. `value` [d] is None until an evaluator has set it."""

    __slots__ = ("buffers", "rank", "snapshot", "step", "value")

    def __init__(self, rank: int, step: int, snapshot: Tensor, buffers: Tensor) -> None:
        self.rank = rank
        self.step = step
        self.snapshot: Tensor | None = snapshot
        self.buffers = buffers
        self.value: Tensor | None = None

    def fulfil(self, value: Tensor, buffers: Tensor) -> None:
        """Set the gradient, and let go of the snapshot: per worker there is one or the other."""
        self.value = value
        self.buffers = buffers
        self.snapshot = None


class Evaluator(Protocol):
    def evaluate(self, wanted: Sequence[Wanted]) -> None:
        """Fulfil every one of them."""
        ...


@dataclass(frozen=True)
class Chosen:
    """name: stacked | vmap | loop | none. why: one line on the choice, None if it is what was asked for by name."""

    evaluator: Evaluator
    name: str
    why: str | None = None


def build_evaluator(name: str, problem: Problem) -> Evaluator:
    """name: stacked | vmap | loop | none. Raises ValueError for a module that cannot be stacked."""
    from dsgd.gradients.loop import Loop
    from dsgd.gradients.nothing import Nothing
    from dsgd.gradients.stacked import Stacked
    from dsgd.gradients.vmap import Vmap

    return {"loop": Loop, "vmap": Vmap, "stacked": Stacked, "none": Nothing}[name](problem)


def choose(experiment: Experiment, problem: Problem) -> Chosen:
    """What the experiment asks for, or the next best that can serve this module: stacked, vmap, loop."""
    name = experiment.gradients
    if name == "none":
        return Chosen(build_evaluator(name, problem), name)
    import torch

    from dsgd.gradients.loop import Loop
    from dsgd.gradients.precision import compiling, prepare
    from dsgd.gradients.stacked import Stacked, chosen_device
    from dsgd.gradients.stacking import Unstackable
    from dsgd.gradients.vmap import Vmap
    from dsgd.host import keep_freed_memory

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
