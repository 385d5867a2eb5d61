"""N models in one call, as one stacked network (`dsgd.gradients.stacking`): the fast way, for known layers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from threading import Lock

import torch
from torch import Tensor
from torch.func import functional_call

from dsgd.data.protocols import batches, evaluation, total_loss
from dsgd.gradients.batch_invariance import alike, points
from dsgd.gradients.pending import Wanted
from dsgd.gradients.rows import together
from dsgd.gradients.stack_threads import Lanes
from dsgd.gradients.stacking import Network, Unstackable
from dsgd.gradients.unfolded import ALIGNED
from dsgd.problem.problem import Problem, Slot

LARGEST, SMALLEST = 128, 4  # models in a stack, if memory decides
CACHED_BYTES = 2 << 20  # of the largest activation of all stacks that are computed at once
EXACT = 1e-9  # of float64, relative to the largest entry
EVALUATION_NUMBERS = 1 << 20  # in the largest activation of an evaluation


class Stacked:
    """stack_size: most models in one call; None: as many as the cache holds. nodes: most that are ever wanted at once.
    Stacks go side by side, as many as there are and torch has threads.

    Every gradient is the same to the bit whatever it is stacked with: only sizes of a stack are used of which that was
    seen before the run. Raises Unstackable for a module that cannot be stacked.
    """

    def __init__(
        self,
        problem: Problem,
        stack_size: int | None = None,
        nodes: int = LARGEST,
        device: torch.device | None = None,
    ) -> None:
        self.problem = problem
        self.device = device or torch.device("cpu")
        self._training = Network(problem, training=True)
        self._evaluation = Network(problem, training=False)
        _verify(problem, self._training, self._evaluation)
        inputs, _ = problem.data.batch(0, 0)
        self._activation = self._training.largest * problem.start.element_size()
        threads = torch.get_num_threads() if self.device.type == "cpu" else 1
        most = min(stack_size or automatic_size(self._activation * len(inputs), threads), nodes)
        self.lanes = Lanes(min(threads, math.ceil(nodes / most)))
        self._reading = Lock()
        self.sizes = self._trusted(most)

    def evaluate(self, wanted: Sequence[Wanted]) -> None:
        self.lanes.each(self._fulfil, self._stacks(wanted))

    def _stacks(self, wanted: Sequence[Wanted]) -> Iterator[tuple[Sequence[Wanted], int]]:
        """What goes together, and the size of its stack: no more than a lane's share, so that every lane has work."""
        share = math.ceil(len(wanted) / self.lanes.count)
        most = next((size for size in self.sizes if size >= share), self.sizes[-1])
        begin = 0
        while begin < len(wanted):
            size = min(most, self._size(len(wanted) - begin))
            yield wanted[begin : begin + size], size
            begin += size

    def accuracies(self, xs: Sequence[Tensor], buffers: Sequence[Tensor]) -> list[float]:
        """Of every model, its vector [d] and buffers [nb], on the test set. The data must have classes."""
        size = max(1, min(LARGEST, EVALUATION_NUMBERS // max(self._evaluation.largest * 64, 1)))
        parts = [slice(begin, begin + size) for begin in range(0, len(xs), size)]
        correct, total = torch.zeros(len(xs), dtype=torch.int64), 0
        for inputs, labels in evaluation(self.problem.data, test=True):

            def count(part: slice, inputs: Tensor = inputs, labels: Tensor = labels) -> None:
                correct[part] += self._correct(xs[part], buffers[part], inputs, labels)

            self.lanes.each(count, [(part,) for part in parts])
            total += len(labels)
        return [int(of_one) / total for of_one in correct]

    @torch.no_grad()
    def _correct(self, xs: Sequence[Tensor], buffers: Sequence[Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        """How many samples each of the models classifies as labelled: [n]."""
        parameters = _parts(self.problem.parameters, together(xs).to(self.device))
        statistics = _parts(self.problem.buffers, torch.stack(list(buffers)).to(self.device))
        samples = max(64, EVALUATION_NUMBERS // max(len(xs) * self._evaluation.largest, 1))
        correct = torch.zeros(len(xs), dtype=torch.int64)
        for some, their_labels in zip(inputs.split(samples), labels.split(samples), strict=True):
            outputs = self._evaluation(parameters, statistics, len(xs), some.to(self.device))
            correct += (outputs.argmax(dim=2).cpu() == their_labels).sum(dim=1)
        return correct

    def _size(self, left: int) -> int:
        """Of the next stack: the smallest that holds all if it is nearly full, otherwise the largest that will be."""
        for size in self.sizes:
            if size >= left:
                fitting = [smaller for smaller in self.sizes if smaller <= left]
                return size if 4 * size <= 5 * left or not fitting else fitting[-1]
        return self.sizes[-1]

    def _fulfil(self, group: Sequence[Wanted], size: int) -> None:
        rows = [*group, *[group[-1]] * (size - len(group))]
        x = together([row.snapshot for row in rows if row.snapshot is not None])
        buffers = torch.stack([row.buffers for row in rows])
        with self._reading:
            inputs, targets = batches(self.problem.data, [row.rank for row in rows], [row.step for row in rows])
        g, changed = self._gradients(x, buffers, inputs, targets)
        self.problem.add_decay(g, x)
        # gradients as rows, not copies: who wanted them together reads them at about the same time
        kept = [part.clone() for part in changed] if changed.numel() else [item.buffers for item in group]
        for item, value, statistics in zip(group, g, kept, strict=False):
            item.fulfil(value, statistics)

    def _gradients(self, x: Tensor, buffers: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients [n, d] at x [n, d] without decay, and the buffers [n, nb] after the forward pass."""
        parameters = _views(self.problem.parameters, x.to(self.device))
        statistics = _parts(self.problem.buffers, buffers.to(self.device))
        for parameter in parameters:
            parameter.requires_grad_()
        outputs = self._training(parameters, statistics, len(x), inputs.to(self.device))
        loss = total_loss(self.problem.data, outputs.to(targets.device), targets)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        changed = _flat(statistics).to(x.device) if statistics else buffers
        return _flat(gradients).to(x.device), changed

    def _trusted(self, most: int) -> list[int]:
        """Sizes of a stack, ascending up to `most`, that yield the same bits. Kernels are chosen by size, so that is
        tried. Raises Unstackable if not even the place in a stack is without influence."""
        # below 4, kernels for one or a few matrices are others, which an example need not show; in between the powers
        # of two, so that few that are wanted together need not be filled up, or split, to the next one
        smaller = sorted(size << k for size in (4, 6) for k in range(most.bit_length()) if size << k < most)

        def fulfil(items: list[Wanted], size: int) -> None:
            self.lanes.each(self._fulfil, [(items, size)])

        sizes = alike(self.problem, most, [*smaller, most], fulfil)
        if most not in sizes:
            raise Unstackable("the whole, because its gradients depend on their place in the stack")
        return sizes


def chosen_device(name: str) -> torch.device:
    """name: auto (CUDA where there is one) | cpu | cuda. Raises ValueError for a device that there is not."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError(f"engine.device must be cpu or auto where there is no CUDA device, got {name}")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or its products are not deterministic
    return torch.device("cuda")


def automatic_size(activation_bytes: int, threads: int) -> int:
    """How many models to stack. activation_bytes: of the largest activation of one model. What one layer leaves for the
    next should stay in the cache, which threads share: large activations gain nothing from company."""
    fitting = CACHED_BYTES // max(activation_bytes * threads, 1)
    return min(LARGEST, max(SMALLEST, 1 << max(fitting, 1).bit_length() - 1))


def _parts(slots: Sequence[Slot], flat: Tensor) -> list[Tensor]:
    """The slots' own contiguous tensors [n, *shape], from vectors [n, d]."""
    n = len(flat)
    sizes = [slot.shape.numel() for slot in slots]
    return [
        part.clone(memory_format=torch.contiguous_format).view(n, *slot.shape)
        for slot, part in zip(slots, flat.split(sizes, dim=1) if slots else [], strict=True)
    ]


def _flat(parts: Sequence[Tensor]) -> Tensor:
    """Vectors [n, d] of tensors [n, *shape], however these lie in memory."""
    return torch.cat([part.flatten(1) for part in parts], dim=1)


def _views(slots: Sequence[Slot], rows: Tensor) -> list[Tensor]:
    """As `_parts`, but where all models' parts begin well, they are views of the rows: what needs them in one piece
    copies them."""
    if rows.stride(0) % ALIGNED:
        return _parts(slots, rows)
    parts = zip(slots, rows.split([slot.shape.numel() for slot in slots], dim=1), strict=True)
    return [
        (part.clone(memory_format=torch.contiguous_format) if slot.start % ALIGNED else part).view(-1, *slot.shape)
        for slot, part in parts
    ]


def _verify(problem: Problem, training: Network, evaluation: Network) -> None:
    """Two models stacked against the module itself, in double precision: whatever a module does besides its layers
    would show. Raises Unstackable."""
    inputs = problem.data.batch(0, 0)[0][:4].double()
    x, buffers = map(torch.stack, zip(*points(problem, 2, dtype=torch.float64), strict=True))
    for network, mode in ((training, True), (evaluation, False)):
        parameters = [part.requires_grad_() for part in _parts(problem.parameters, x)]
        statistics = _parts(problem.buffers, buffers)
        found = network(parameters, statistics, 2, inputs.expand(2, *inputs.shape) if mode else inputs)
        direction = torch.linspace(-1, 1, found[0].numel(), dtype=torch.float64).view(found[0].shape)
        slopes = torch.autograd.grad((found * direction).sum(), parameters, allow_unused=True, materialize_grads=True)
        for row in range(2):
            own = [part[row].detach().clone().requires_grad_() for part in parameters]
            kept = [slot.view(buffers[row].clone()) for slot in problem.buffers]
            expected = _plain(problem, own, kept, inputs, mode)
            steep = torch.autograd.grad((expected * direction).sum(), own, allow_unused=True, materialize_grads=True)
            pairs = [(found[row], expected), *zip((slope[row] for slope in slopes), steep, strict=True)]
            pairs += zip((part[row] for part in statistics), kept, strict=True)
            scale = max((float(value.detach().abs().max()) for _, value in pairs if value.numel()), default=0.0)
            for value, right in pairs:
                if value.shape != right.shape or not torch.allclose(value, right, rtol=0, atol=EXACT * max(scale, 1.0)):
                    raise Unstackable(f"{type(problem.module).__name__}, which does more than its layers")


def _plain(
    problem: Problem, parameters: Sequence[Tensor], buffers: Sequence[Tensor], inputs: Tensor, training: bool
) -> Tensor:
    """The module's own outputs with these parameters and buffers, which change in training."""
    state = {slot.path: value for slot, value in zip(problem.parameters, parameters, strict=True)}
    state |= {slot.path: value for slot, value in zip(problem.buffers, buffers, strict=True)}
    for path, value in (*problem.module.named_parameters(), *problem.module.named_buffers()):
        if path not in state:  # counters, which change; what does not train
            state[path] = value.detach().to(inputs.dtype if value.is_floating_point() else value.dtype, copy=True)
    module = problem.module.train(training)
    return functional_call(module, state, (inputs,))
