"""A model on a data set as a function of one flat parameter vector: gradients and evaluation."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dsgd.data import Data
from dsgd.data.protocols import (
    EVALUATION_BATCH,
    Digest,
    MovableData,
    content_hash,
    data_digest,
    difference,
    evaluation_batches,
    sample_losses,
)
from dsgd.experiment import Experiment
from dsgd.problem.precision import AUTOCAST, LOSS_SCALES
from dsgd.problem.slots import ModelFailed, Slot, is_norm_or_bias, matrices_of, short_message
from dsgd.problem.state import ModuleState
from dsgd.streams import seeded_beside, stream

T = TypeVar("T")
PARAMETERS, BUFFERS = "parameters", "buffers"


class Measured(NamedTuple):
    """Mean loss, and standard deviation of a sample's loss (NaN if unknown). Accuracy (None without classes), and top-5
    accuracy (None with at most five classes)."""

    loss: float
    deviation: float
    accuracy: float | None
    top5: float | None


class Problem:
    """Compute gradients and evaluate, with one module for all workers: its parameters are views of the bound vector.

    dimension: d, the number of trainable parameters. start: [d], the initial vector, the same for every worker. layout:
    the parameters' shapes, in the order of x. matrices: the parameters that are matrices. start_buffers: [nb], the
    initial buffers (batch norm's running statistics and counters), which belong to a worker but not to x. buffers: the
    floating-point buffers, first in [nb]. state: moves parameters and buffers into the module. decay_mask: [d], 1 where
    weight decay acts, or None if it acts everywhere.

    Arithmetic of gradients: autocast: dtype of torch's autocast; None: `dtype`, the type of all vectors. channels_last:
    memory format of images and of convolution kernels, also within the vectors. compiled: use torch.compile, from the
    first pass on. seed: seed of the module's random numbers in training. Evaluation is in `dtype`, by the module itself
    or by `predict`, if set: from a vector [d], buffers [nb] and inputs [b, *input_shape] to outputs [b, ...]."""

    def __init__(
        self,
        module: nn.Module,
        data: Data,
        dtype: torch.dtype,
        weight_decay: float,
        decay_norm_and_bias: bool,
        *,
        autocast: torch.dtype | None = None,
        channels_last: bool = False,
        compiled: bool = False,
        seed: int = 0,
    ):
        self.module = module
        self.state = ModuleState(module, dtype, channels_last)
        self.predict: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
        self.data = data
        self.dtype = dtype
        self._seed, self._decay_norm_and_bias = seed, decay_norm_and_bias
        self._draws: bool | None = None  # None: unknown before the first gradient
        self.weight_decay = weight_decay
        self.autocast = autocast
        self.channels_last = channels_last
        self.compiled = compiled
        self.loss_scales = LOSS_SCALES if autocast == torch.float16 else (1.0,)
        self.device = torch.device("cpu")
        self._run: Callable[[Tensor], Tensor] | None = None if compiled else module
        self.parameters, self.buffers = self.state.parameters, self.state.buffers
        self.start, self.start_buffers = self.state.start(dtype)
        self.dimension = self.start.numel()
        self.layout = [slot.layout for slot in self.parameters]
        self.matrices = matrices_of(module, self.parameters)
        self.decay_mask = None if decay_norm_and_bias or not weight_decay else self._mask()

    def _mask(self) -> Tensor:
        mask = torch.ones_like(self.start)
        for slot in self.parameters:
            if is_norm_or_bias(slot):
                slot.view(mask).zero_()
        return mask

    def twin(self) -> Problem:
        """Return the same problem with a copy of the module. Raises ModelFailed for a module that cannot be copied."""
        try:
            module = copy.deepcopy(self.module)
        except Exception as error:  # a user's module may raise anything
            raise ModelFailed(
                f"{type(self.module).__name__}, which cannot be copied ({short_message(error)})"
            ) from error
        options = {"autocast": self.autocast, "channels_last": self.channels_last, "compiled": self.compiled}
        decay = self.weight_decay, self._decay_norm_and_bias
        twin = Problem(module, self.data, self.dtype, *decay, seed=self._seed, **options)
        twin.start, twin.start_buffers = self.start, self.start_buffers
        if self.device.type != "cpu":
            twin.to(self.device)
        return twin

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return the outputs [b, ...] of the bound module in training, in `dtype`. inputs: batch on its device."""
        if self.channels_last and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        if self._run is None:  # not before: processes are forked, and the compiler has threads
            self._run = torch.compile(self.module)
        cast = nullcontext() if self.autocast is None else torch.autocast(inputs.device.type, self.autocast)
        with cast, _two_or_more(inputs, "batch_size"):
            outputs = self._run(inputs)
        if not isinstance(outputs, Tensor):
            name = type(self.module).__name__
            raise ModelFailed(f"the model must give one tensor in training, got {type(outputs).__name__} of {name}")
        return outputs.to(self.dtype)

    def gradient(self, x: Tensor, buffers: Tensor, rank: int, step: int) -> Tensor:
        """Return the gradient [d] at x of the worker's batch at its own step, weight decay included.

        x, buffers: vectors on the module's device; the buffers change in place."""
        return self.gradient_and_loss(x, buffers, rank, step)[0]

    def gradient_and_loss(self, x: Tensor, buffers: Tensor, rank: int, step: int) -> tuple[Tensor, Tensor]:
        """Return the `gradient` [d] and the loss of the batch, a scalar without weight decay, on the same device."""
        with self.drawing(rank, step):
            return self.gradient_of_batch(x, buffers, *self.data.batch(rank, step))

    @property
    def draws(self) -> bool | None:
        """Return whether the module draws random numbers, such as masks of dropout; None before the first gradient."""
        return self._draws

    @contextmanager
    def drawing(self, rank: int, step: int) -> Iterator[int | None]:
        """Make the module's random numbers inside of the block, such as the masks of dropout, depend only on the worker
        and its step. Modules draw from torch's global stream, which is restored. Yields its seed in the block; None if
        the module is known to draw nothing."""
        if self._draws is False and not self.state.in_place:  # as its first gradient has shown
            yield None
            return
        seed = int(stream("module", self._seed, rank, step).integers(2**63))
        beside = seeded_beside(seed) if self.state.in_place else nullcontext()
        devices = [] if self.device.type == "cpu" else [self.device]
        with torch.random.fork_rng(devices, device_type=self.device.type), beside:
            torch.manual_seed(seed)
            before = self._random_state()
            yield seed
            self._draws = bool(self._draws) or not torch.equal(before, self._random_state())

    def _random_state(self) -> Tensor:
        cpu = torch.get_rng_state()
        if self.device.type == "cpu":
            return cpu
        return torch.cat((cpu, torch.get_device_module(self.device).get_rng_state(self.device)))

    def gradient_of_batch(self, x: Tensor, buffers: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient [d] and the loss of a batch, as `gradient_and_loss` does."""
        inputs, targets = inputs.to(self.device), targets.to(self.device)
        before = buffers.clone()
        scales = iter(self.loss_scales)
        while True:
            scale = next(scales)
            g, loss, _ = self.examined_gradient(x, buffers, inputs, targets, lambda _: None, scale)
            if scale == 1 or bool(g.isfinite().all()):
                return self.add_decay(g, x), loss
            buffers.copy_(before)

    @torch.no_grad()
    def batch_loss(self, x: Tensor, buffers: Tensor, rank: int, step: int) -> float:
        """Return the loss at x [d] of the worker's batch at its own step, by the module in evaluation mode."""
        inputs, targets = (part.to(self.device) for part in self.data.batch(rank, step))
        self.state.bind(x.to(self.device), buffers.to(self.device))
        self.state.train(False)
        return float(self.data.loss(self.module(inputs), targets))

    def examined_gradient(
        self,
        x: Tensor,
        buffers: Tensor,
        inputs: Tensor,
        targets: Tensor,
        examine: Callable[[Tensor], T],
        scale: float = 1,
    ) -> tuple[Tensor, Tensor, T]:
        """Return the gradient [d] without weight decay, the loss, and the result of `examine(loss)` before the backward
        pass."""
        g, state = torch.zeros_like(x), self.state
        state.bind(x, buffers)
        if state.in_place:
            state.forget_gradients()
        else:
            for slot in self.parameters:
                slot.owner._parameters[slot.name].grad = slot.view(g)  # pyright: ignore[reportOptionalMemberAccess]
        self.state.train(True)
        loss = self.data.loss(self.outputs(inputs), targets)
        examined = examine(loss)
        (loss if scale == 1 else loss * scale).backward()
        if state.in_place:
            state.gradients_into(g)
        state.keep(x, buffers)
        return g if scale == 1 else g.div_(scale), loss.detach(), examined

    def add_decay(self, g: Tensor, x: Tensor) -> Tensor:
        """Add the gradient of the weight decay at x to g, in place. x, g: [d] or [n, d]."""
        if self.weight_decay and self.decay_mask is not None:
            g.addcmul_(x, self.decay_mask, value=self.weight_decay)
        elif self.weight_decay:
            g.add_(x, alpha=self.weight_decay)
        return g

    def decayed(self, g: Tensor, x: Tensor, slot: Slot, scale: float, out: Tensor) -> None:
        """Write g plus scale times the gradient of the weight decay at x into `out`, in one pass over memory. All are
        of the parameter at `slot`."""
        if not self.weight_decay or scale == 0:
            out.copy_(g)
        elif self.decay_mask is not None:
            torch.addcmul(g, x, slot.view(self.decay_mask), value=self.weight_decay * scale, out=out)
        else:
            torch.add(g, x, alpha=self.weight_decay * scale, out=out)

    def to(self, device: torch.device) -> None:
        """Move the module to a device. The initial vectors and the data are not moved."""
        self.device = device
        self.state.to(device)
        if self.decay_mask is not None:
            self.decay_mask = self.decay_mask.to(device)

    def live_on(self, device: torch.device) -> None:
        """Move everything to a device: the module, the initial vectors, and data that can be moved and fit there."""
        self.to(device)
        self.start, self.start_buffers = self.start.to(device), self.start_buffers.to(device)
        if isinstance(self.data, MovableData):
            self.data.move_to(device)

    @torch.no_grad()
    def evaluate(self, x: Tensor, buffers: Tensor, test: bool, limit: int | None = None) -> Measured:
        """Evaluate a model on the test or training set (its first `limit` samples)."""
        classes = self.data.classes or 0
        # read at the end: a GPU computes the next batch meanwhile
        counts, means, squares = list[int](), list[Tensor](), list[Tensor]()
        correct, among_five = list[Tensor](), list[Tensor]()
        for outputs, labels in self.evaluated(x, buffers, test, limit):
            counts.append(labels.numel() if classes else len(labels))
            means.append(self.data.loss(outputs, labels))
            squares.append(sample_losses(self.data, outputs, labels).double().square().mean())
            if classes:
                correct.append((outputs.argmax(dim=1) == labels).sum())
            if classes > 5:
                among_five.append((_larger(outputs, labels) < 5).sum())
        loss, square = (
            sum(value * count for value, count in zip(_numbers(column), counts, strict=True))
            for column in (means, squares)
        )
        count = sum(counts)  # number of labels: one for each sample, or for each token
        mean, accuracy = loss / count, sum(_numbers(correct)) / count if classes else None
        deviation = math.sqrt(max(square / count - mean * mean, 0.0))  # NaN stays, because it is the first argument
        return Measured(mean, deviation, accuracy, sum(_numbers(among_five)) / count if classes > 5 else None)

    @torch.no_grad()
    def evaluated(
        self, x: Tensor, buffers: Tensor, test: bool, limit: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the outputs [b, ...] of a model in evaluation and the labels [b, ...], batch by batch."""
        self.state.bind(x.to(self.device), buffers.to(self.device))
        self.state.train(False)
        for batch, labels in evaluation_batches(self.data, test, limit):
            batch, labels = batch.to(self.device), labels.to(self.device)
            yield self.module(batch) if self.predict is None else self.predict(x, buffers, batch), labels

    @torch.no_grad()
    def recalibrated(self, x: Tensor, limit: int | None) -> Tensor:
        """Return batch-norm statistics [nb] of the model x: the plain average over batches of the training set."""
        buffers = self.start_buffers.to(self.device, copy=True)
        x_here = x.to(self.device, copy=self.state.in_place)
        self.state.bind(x_here, buffers)
        self.state.train(True)
        norms = [module for module in self.module.modules() if isinstance(module, _BatchNorm)]
        momenta = [norm.momentum for norm in norms]
        # in batches of one size on every device: the average depends on it
        evaluated = evaluation_batches(self.data, test=False, limit=limit, size=EVALUATION_BATCH)
        batches = (inputs for inputs, _ in evaluated)
        for count, batch in enumerate(without_single(batches), start=1):
            for norm in norms:
                norm.momentum = 1 / count
            with _two_or_more(batch, "eval.train_samples"):
                self.module(batch.to(self.device))
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        self.state.keep(x_here, buffers)
        return buffers.to(x.device)


def without_single(batches: Iterable[Tensor]) -> Iterator[Tensor]:
    """Join a last batch of one sample to the batch before it: batch norm cannot normalise one sample by itself."""
    before: Tensor | None = None
    for batch in batches:
        if before is not None and len(batch) == 1:
            batch, before = torch.cat((before, batch)), None
        if before is not None:
            yield before
        before = batch
    if before is not None:
        yield before


@contextmanager
def _two_or_more(batch: Tensor, key: str) -> Iterator[None]:
    """Raise ModelFailed if batch norm, inside of the block, cannot normalise a batch of one sample. key: key of the
    batch size."""
    try:
        yield
    except ValueError as error:
        if len(batch) > 1 or "more than 1 value per channel" not in str(error):
            raise
        rule = f"{key} must be >= 2 for this model, as batch norm has one value of a channel"
        raise ModelFailed(f"{rule}, got 1") from error


def _larger(outputs: Tensor, labels: Tensor) -> Tensor:
    """Count the outputs [b, classes, ...] that are larger than the label's output [b, ...]; among equal outputs the
    first is the largest, as in argmax. Sorting a few hundred classes would take longer than the forward pass."""
    label_output = outputs.gather(1, labels.unsqueeze(1))
    index = torch.arange(outputs.shape[1], device=outputs.device).view(-1, *[1] * (labels.dim() - 1))
    ahead = (outputs <= label_output).logical_not_()
    return ahead.logical_or_((outputs == label_output).logical_and_(index < labels.unsqueeze(1))).sum(dim=1)


def _numbers(scalars: Sequence[Tensor]) -> list[Any]:
    """Return the values of scalars on one device."""
    return torch.stack(list(scalars)).tolist() if scalars else []


def build_problem(experiment: Experiment) -> Problem:
    """Load the data and initialise the model. Raises ValueError for data that cannot be read."""
    dtype = torch.float64 if experiment.precision == "fp64" else torch.float32  # of parameters and every vector [d]
    # without gradients only the shape of the data matters: do not ask for a share for each of thousands of nodes
    nodes, batch_size = (1, 1) if experiment.gradients == "none" else (experiment.nodes, experiment.batch_size)
    data = experiment.data.load(nodes, batch_size, experiment.seed, dtype)
    # modules initialise themselves from torch's global stream: seed it, and restore it
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        module = experiment.model.build(data.input_shape, data.classes)
    optimizer = experiment.optimizer
    return Problem(
        module,
        data,
        dtype,
        optimizer.gradient_decay,
        optimizer.decay_norm_and_bias,
        autocast=AUTOCAST.get(experiment.precision),
        channels_last=experiment.channels_last,
        seed=experiment.seed,
        compiled=experiment.compile,
    )


def problem_digest(problem: Problem) -> Digest:
    """Return the digest of a problem: its data's digest; names, shapes and types of parameters and buffers.

    Raises DataLost for a sample that cannot be read."""
    module = problem.module
    kinds = {PARAMETERS: module.named_parameters(), BUFFERS: module.named_buffers()}
    layouts = {
        kind: {"all": content_hash(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors)}
        for kind, tensors in kinds.items()
    }
    return data_digest(problem.data) | layouts


def start_digest(problem: Problem) -> str:
    """Return a hash of the vectors that training starts from."""
    return content_hash([problem.start, problem.start_buffers])


def complaint(
    digest: Mapping[str, Mapping[str, str]], other: Mapping[str, Mapping[str, str]], than: str = ""
) -> str | None:
    """Return the difference of a problem from another, `other data than rank 0: training labels differ`; None if the
    known parts are equal. than: name of the other problem."""
    part = difference(digest, other)
    if part is None:
        return None
    what = "another model" if part in (PARAMETERS, BUFFERS) else "other data"
    return f"{what}{than and f' than {than}'}: {part} differ"
