"""Evaluates gradients of N models in one call of a stacked network: the fast way, for modules of known layers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from threading import Lock

import torch
from torch import Tensor

from dsgd.data.protocols import evaluation_batches, stacked_batches, stacked_losses
from dsgd.gradients.batch_invariance import batch_invariant_sizes, random_points
from dsgd.gradients.pending import PendingGradient
from dsgd.gradients.plain_module import is_exact, plain_outputs
from dsgd.gradients.rows import stack_rows
from dsgd.gradients.side_by_side import SideBySide
from dsgd.gradients.stacking import StackedNetwork
from dsgd.gradients.tracing import Unstackable
from dsgd.gradients.unfolded import ALIGNED
from dsgd.host.gpus import visible_gpus
from dsgd.problem.problem import Problem
from dsgd.problem.slots import Slot

LARGEST, SMALLEST = 128, 4  # models in a stack, if memory decides
CACHED_BYTES = 2 << 20  # of the largest activation of all stacks that are computed at once
EVALUATION_NUMBERS = 1 << 20  # in the largest activation of an evaluation


class StackedEvaluator:
    """Evaluate gradients in stacks, several at once where torch has several threads.

    stack_size: most models in one stack; None: as many as the cache holds. nodes: most gradients pending at once.
    cores: most stacks computed at once; None: as many as torch has threads.
    Every gradient is bitwise independent of what it is stacked with: only stack sizes are used that were found to be so
    before the run. Raises Unstackable for a module that cannot be stacked.
    """

    def __init__(
        self,
        problem: Problem,
        stack_size: int | None = None,
        nodes: int = LARGEST,
        device: torch.device | None = None,
        cores: int | None = None,
    ) -> None:
        self.problem = problem
        self.device = device or torch.device("cpu")
        self._training = StackedNetwork(problem, training=True)
        self._evaluation = StackedNetwork(problem, training=False)
        _verify(problem, self._training, self._evaluation)
        threads = cores or torch.get_num_threads() if self.device.type == "cpu" else 1
        most = min(stack_size or automatic_size(_activation_bytes(problem, self._training), threads), nodes)
        self.threads = SideBySide(min(threads, math.ceil(nodes / most)))
        self._reading = Lock()  # data sets serve one thread at a time
        self.sizes = self._invariant_sizes(most)

    def evaluate(self, pending: Sequence[PendingGradient]) -> None:
        self.threads.starmap(self._evaluate_stack, self._stacks(pending))

    def _stacks(self, pending: Sequence[PendingGradient]) -> Iterator[tuple[Sequence[PendingGradient], int]]:
        """Split into stacks, each with its size: no more than a thread's share, so that every thread has work."""
        share = math.ceil(len(pending) / self.threads.workers)
        most = next((size for size in self.sizes if size >= share), self.sizes[-1])
        begin = 0
        while begin < len(pending):
            size = min(most, self._size(len(pending) - begin))
            yield pending[begin : begin + size], size
            begin += size

    def accuracies(self, xs: Sequence[Tensor], buffers: Sequence[Tensor]) -> list[float]:
        """Return the test accuracies of models, from vectors [d] and buffers [nb]. The data must have classes."""
        size = max(1, min(LARGEST, EVALUATION_NUMBERS // max(self._evaluation.largest * 64, 1)))
        parts = [slice(begin, begin + size) for begin in range(0, len(xs), size)]
        correct, total = torch.zeros(len(xs), dtype=torch.int64), 0
        for inputs, labels in evaluation_batches(self.problem.data, test=True):

            def count(part: slice, inputs: Tensor = inputs, labels: Tensor = labels) -> None:
                correct[part] += self._correct(xs[part], buffers[part], inputs, labels)

            self.threads.starmap(count, [(part,) for part in parts])
            total += labels.numel()
        return [int(of_one) / total for of_one in correct]

    @torch.no_grad()
    def _correct(self, xs: Sequence[Tensor], buffers: Sequence[Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        """Count the labels that each model finds: [n]."""
        parameters = _slot_tensors(self.problem.parameters, stack_rows(xs).to(self.device))
        statistics = _slot_tensors(self.problem.buffers, torch.stack(list(buffers)).to(self.device))
        samples = max(64, EVALUATION_NUMBERS // max(len(xs) * self._evaluation.largest, 1))
        correct = torch.zeros(len(xs), dtype=torch.int64)
        for some, their_labels in zip(inputs.split(samples), labels.split(samples), strict=True):
            outputs = self._evaluation(parameters, statistics, len(xs), some.to(self.device))
            correct += (outputs.argmax(dim=2).cpu() == their_labels).flatten(1).sum(dim=1)
        return correct

    def _size(self, left: int) -> int:
        """Choose the size of the next stack: the smallest that holds all if nearly full, else the largest full one."""
        for size in self.sizes:
            if size >= left:
                fitting = [smaller for smaller in self.sizes if smaller <= left]
                return size if 4 * size <= 5 * left or not fitting else fitting[-1]
        return self.sizes[-1]

    def _evaluate_stack(self, group: Sequence[PendingGradient], size: int) -> None:
        rows = [*group, *[group[-1]] * (size - len(group))]
        x = stack_rows([row.snapshot for row in rows if row.snapshot is not None])
        buffers = torch.stack([row.buffers for row in rows])
        with self._reading:
            inputs, targets = stacked_batches(self.problem.data, [row.rank for row in rows], [row.step for row in rows])
        g, changed, losses = self._gradients(x, buffers, inputs, targets)
        self.problem.add_decay(g, x)
        # rows, not copies: their memory is shared until the last is used, which in lock-step is at about the same time
        kept = [part.clone() for part in changed] if changed.numel() else [item.buffers for item in group]
        for item, value, statistics, loss in zip(group, g, kept, losses, strict=False):
            item.set(value, statistics, loss)

    def _gradients(self, x: Tensor, buffers: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients [n, d] at x [n, d] without decay, the buffers [n, nb] after the forward pass, and the
        losses [n]."""
        parameters = _slot_tensors(self.problem.parameters, x.to(self.device), views=True)
        statistics = _slot_tensors(self.problem.buffers, buffers.to(self.device))
        for parameter in parameters:
            parameter.requires_grad_()
        outputs = self._training(parameters, statistics, len(x), inputs.to(self.device))
        losses = stacked_losses(self.problem.data, outputs.to(targets.device), targets)
        gradients = torch.autograd.grad(losses.sum(), parameters, allow_unused=True, materialize_grads=True)
        changed = buffers
        if statistics:
            changed = torch.cat((_flat(statistics).to(x.device), buffers[:, self.problem.state.numbers :]), dim=1)
            self._training.counters.count(changed)
        return _flat(gradients).to(x.device), changed, losses.detach()

    def _invariant_sizes(self, most: int) -> list[int]:
        """Return the stack sizes, ascending up to `most`, at which gradients have the same bits; torch chooses kernels
        by size, so this is tried out. Raises Unstackable if even the place in a stack of one size changes bits."""
        # not below 4: there are other kernels for one or a few matrices, whose difference an example need not show;
        # sizes between the powers of two, so that few gradients need less padding, and one just below the largest:
        # without barriers, that is about how many gradients have begun since the last were evaluated
        tried = {size << k for size in (4, 6) for k in range(most.bit_length())} | {max(SMALLEST, 7 * most // 8), most}

        def evaluate(items: list[PendingGradient], size: int) -> None:
            self.threads.starmap(self._evaluate_stack, [(items, size)])

        sizes = batch_invariant_sizes(self.problem, most, sorted(size for size in tried if size <= most), evaluate)
        if most not in sizes:
            raise Unstackable("the whole, because its gradients depend on their place in the stack")
        return sizes


def chosen_device(name: str) -> torch.device:
    """Return the device for auto (CUDA where there is one) | cpu | cuda. Raises ValueError if there is none."""
    # torch begins CUDA in this process to count GPUs by MIG's names, and those that are forked of it cannot use it
    is_here = torch.backends.cuda.is_built() and visible_gpus(os.environ) > 0
    if name == "cpu" or (name == "auto" and not is_here):
        return torch.device("cpu")
    if not is_here:
        raise ValueError(f"engine.device must be cpu or auto where there is no CUDA device, got {name}")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or its products are not deterministic
    return torch.device("cuda")


def automatic_size(activation_bytes: int, threads: int) -> int:
    """Return how many models to stack, so that activations stay in the cache, which threads share, from one layer to
    the next. activation_bytes: of the largest activation of one model."""
    fitting = CACHED_BYTES // max(activation_bytes * threads, 1)
    return min(LARGEST, max(SMALLEST, 1 << max(fitting, 1).bit_length() - 1))


def _activation_bytes(problem: Problem, training: StackedNetwork) -> int:
    """Return the size of the largest activation of one model."""
    inputs, _ = problem.data.batch(0, 0)
    return training.largest * problem.start.element_size() * len(inputs)


def _slot_tensors(slots: Sequence[Slot], rows: Tensor, views: bool = False) -> list[Tensor]:
    """Return the tensors [n, *shape] of all slots from vectors [n, d]: contiguous copies, or with views=True, where all
    models' parts are aligned, views."""
    tensors: list[Tensor] = []
    for slot in slots:
        part = rows[:, slot.start : slot.start + slot.shape.numel()]
        if not views or rows.stride(0) % ALIGNED or slot.start % ALIGNED:
            part = part.clone(memory_format=torch.contiguous_format)
        tensors.append(part.view(len(rows), *slot.shape))
    return tensors


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return vectors [n, d] of tensors [n, *shape]."""
    return torch.cat([tensor.flatten(1) for tensor in tensors], dim=1)


def _verify(problem: Problem, training: StackedNetwork, evaluation: StackedNetwork) -> None:
    """Compare two stacked models with the module itself, in double precision, to find whatever it does besides its
    layers. Raises Unstackable."""
    problem = problem.twin()
    inputs = problem.data.batch(0, 0)[0][:4]
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    x, buffers = map(torch.stack, zip(*random_points(problem, 2, dtype=torch.float64), strict=True))
    for network, mode in ((training, True), (evaluation, False)):
        parameters = [part.requires_grad_() for part in _slot_tensors(problem.parameters, x)]
        statistics = _slot_tensors(problem.buffers, buffers)
        found = network(parameters, statistics, 2, inputs.expand(2, *inputs.shape) if mode else inputs)
        direction = torch.linspace(-1, 1, found[0].numel(), dtype=torch.float64).view(found[0].shape)
        slopes = _slopes(found, direction, parameters)
        for row in range(2):
            own = [part[row].detach().clone().requires_grad_() for part in parameters]
            kept = [slot.view(buffers[row].clone()) for slot in problem.buffers]
            expected = plain_outputs(problem, own, kept, inputs, mode)
            pairs = [(found[row], expected)]
            pairs += zip((slope[row] for slope in slopes), _slopes(expected, direction, own), strict=True)
            pairs += zip((part[row] for part in statistics), kept, strict=True)
            scale = max((float(value.detach().abs().max()) for _, value in pairs if value.numel()), default=0.0)
            for value, right in pairs:
                if not is_exact(value, right, scale):
                    raise Unstackable(f"{type(problem.module).__name__}, which does more than its layers")


def _slopes(outputs: Tensor, direction: Tensor, parameters: Sequence[Tensor]) -> Sequence[Tensor]:
    total = (outputs * direction).sum()
    return torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True)
