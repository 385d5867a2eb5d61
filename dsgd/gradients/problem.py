"""A model on a data set, seen as a function of one flat parameter vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from dsgd.data import Data
from dsgd.experiment import Experiment
from dsgd.gradients.flush import evaluation

DTYPES = {"fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True)
class Slot:
    """Where a parameter or buffer lies in its flat vector."""

    owner: nn.Module
    name: str  # within the owner
    path: str  # within the whole module
    start: int
    shape: torch.Size

    def view(self, flat: Tensor, begin: int = 0) -> Tensor:
        """Its part of a flat vector, or of a range of one that starts at `begin`."""
        start = self.start - begin
        return flat[start : start + self.shape.numel()].view(self.shape)


class Problem:
    """One module object serves all workers: its parameters are views of whichever worker's vector is bound to it.

    dimension: d, the number of trainable parameters. start: [d], the initial vector, the same for every worker.
    start_buffers: [nb], the initial floating-point buffers (batch norm's running statistics), which belong to a worker
    but never to x. decay_mask: [d], 1 where weight decay acts, or None if it acts everywhere.
    """

    def __init__(
        self, module: nn.Module, data: Data, dtype: torch.dtype, weight_decay: float, decay_norm_and_bias: bool
    ):
        self.module = module.to(dtype)
        self.data = data
        self.dtype = dtype
        self.weight_decay = weight_decay
        self.parameters = _slots(module, "_parameters", lambda p: p.requires_grad)
        self.buffers = _slots(module, "_buffers", lambda b: b.is_floating_point())
        self.start = _flatten(self.parameters, dtype)
        self.start_buffers = _flatten(self.buffers, dtype)
        self.dimension = self.start.numel()
        self.decay_mask = None if decay_norm_and_bias or not weight_decay else self._mask()

    def _mask(self) -> Tensor:
        mask = torch.ones_like(self.start)
        for slot in self.parameters:
            if slot.name == "bias" or isinstance(slot.owner, (_NormBase, nn.GroupNorm, nn.LayerNorm)):
                slot.view(mask).zero_()
        return mask

    def bind(self, x: Tensor, buffers: Tensor) -> None:
        """Let the module compute with x [d] and change the buffers [nb] in place when it trains."""
        for slot in self.parameters:
            slot.owner._parameters[slot.name].data = slot.view(x)  # pyright: ignore[reportOptionalMemberAccess]
        for slot in self.buffers:
            slot.owner._buffers[slot.name] = slot.view(buffers)

    def gradient(self, x: Tensor, buffers: Tensor, rank: int, step: int) -> Tensor:
        """Gradient [d] at x of the worker's batch at its own step, weight decay included. Changes the buffers in
        place."""
        inputs, targets = self.data.batch(rank, step)
        g = torch.zeros_like(x)
        self.bind(x, buffers)
        for slot in self.parameters:
            slot.owner._parameters[slot.name].grad = slot.view(g)  # pyright: ignore[reportOptionalMemberAccess]
        self.module.train()
        self.data.loss(self.module(inputs), targets).backward()
        return self.add_decay(g, x)

    def add_decay(self, g: Tensor, x: Tensor) -> Tensor:
        """Add the gradient of the weight decay at x to g, in place; works on rows of vectors, too."""
        if self.weight_decay and self.decay_mask is not None:
            g.addcmul_(x, self.decay_mask, value=self.weight_decay)
        elif self.weight_decay:
            g.add_(x, alpha=self.weight_decay)
        return g

    def decayed(self, g: Tensor, x: Tensor, slot: Slot, scale: float, out: Tensor) -> None:
        """Write g plus scale times the gradient of the weight decay at x into `out`, in one way through the memory.
        All are of one parameter, the one at `slot`."""
        if not self.weight_decay or scale == 0:
            out.copy_(g)
        elif self.decay_mask is not None:
            torch.addcmul(g, x, slot.view(self.decay_mask), value=self.weight_decay * scale, out=out)
        else:
            torch.add(g, x, alpha=self.weight_decay * scale, out=out)

    def to(self, device: torch.device) -> None:
        """Move what computes with vectors there. The initial vectors and the data stay where they are."""
        self.module.to(device)
        if self.decay_mask is not None:
            self.decay_mask = self.decay_mask.to(device)

    @torch.no_grad()
    def evaluate(self, x: Tensor, buffers: Tensor, test: bool, limit: int | None = None) -> tuple[float, float | None]:
        """Mean loss over the test or training set (its first `limit` samples), and the accuracy, None without
        classes."""
        self.bind(x, buffers)
        self.module.eval()
        loss, correct, count = 0.0, 0, 0
        for batch, labels in evaluation(self.data, test, limit):
            outputs = self.module(batch)
            loss += float(self.data.loss(outputs, labels)) * len(batch)
            count += len(batch)
            if self.data.classes is not None:
                correct += int((outputs.argmax(dim=1) == labels).sum())
        return loss / count, None if self.data.classes is None else correct / count

    @torch.no_grad()
    def recalibrated(self, x: Tensor, limit: int | None) -> Tensor:
        """Batch-norm statistics [nb] of the model x: the plain average over batches of the training set."""
        buffers = self.start_buffers.clone()
        self.bind(x, buffers)
        self.module.train()
        norms = [module for module in self.module.modules() if isinstance(module, _BatchNorm)]
        momenta = [norm.momentum for norm in norms]
        for count, (batch, _) in enumerate(evaluation(self.data, test=False, limit=limit), start=1):
            for norm in norms:
                norm.momentum = 1 / count
            self.module(batch)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        return buffers


def build_problem(experiment: Experiment) -> Problem:
    """Load the data and initialise the model. Raises ValueError for data that cannot be read."""
    dtype = DTYPES[experiment.precision]
    # without gradients only the shape of the data matters: do not ask for a share for each of thousands of nodes
    nodes, batch_size = (1, 1) if experiment.gradients == "none" else (experiment.nodes, experiment.batch_size)
    data = experiment.data.load(nodes, batch_size, experiment.seed, dtype)
    # modules initialise themselves from torch's global stream: seed it, and leave it as it was
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        module = experiment.model.build(data.input_shape, data.classes)
    optimizer = experiment.optimizer
    return Problem(module, data, dtype, optimizer.weight_decay, optimizer.decay_norm_and_bias)


def _slots(module: nn.Module, kind: str, wanted: Callable[[Tensor], bool]) -> list[Slot]:
    slots, start = [], 0
    seen: set[int] = set()
    for prefix, owner in module.named_modules():
        for name, tensor in getattr(owner, kind).items():
            if tensor is None or not wanted(tensor) or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            slots.append(Slot(owner, name, f"{prefix}.{name}" if prefix else name, start, tensor.shape))
            start += tensor.numel()
    return slots


def _flatten(slots: list[Slot], dtype: torch.dtype) -> Tensor:
    tensors = [(slot.owner._parameters.get(slot.name), slot.owner._buffers.get(slot.name)) for slot in slots]
    flat = [(p if p is not None else b).detach().reshape(-1) for p, b in tensors]  # pyright: ignore
    return torch.cat(flat).to(dtype) if flat else torch.empty(0, dtype=dtype)
