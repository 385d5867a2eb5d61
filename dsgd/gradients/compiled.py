"""Evaluates gradients by kernels of our own, one model after the other: the fastest way for small networks.

The kernels are in `csrc`, compiled when the package is installed. A model's whole gradient is computed before the next
model's, so its activations stay in the cache.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields

import torch
from torch import Tensor

from dsgd.data.in_memory import Classification, TextWindows
from dsgd.data.protocols import evaluation_batches, joint_batches
from dsgd.gradients.amx_routes import route, route_back
from dsgd.gradients.evaluators import PendingGradient, SideBySide
from dsgd.gradients.examination import is_exact, plain_gradient, plain_outputs, random_points
from dsgd.gradients.program import network_program
from dsgd.gradients.tracing import Untranslatable
from dsgd.gradients.translation import KINDS, SINGLE_KINDS, NetworkProgram, ProgramStep
from dsgd.host.kernels import kernel_library
from dsgd.problem.problem import Problem

LARGEST_BYTES = 2 << 30  # vectors and activations of one model; each thread holds one model's
PART = 128  # number of tokens whose activations fit into the cache
CACHE = 1 << 20  # bytes: a larger activation is computed in parts
VERIFIED = 4  # samples
# Names of the processor's extensions in csrc/kernels.c: for people, and the bytes of a vector.
EXTENSIONS = {"avx512": ("AVX-512", 64), "avx2": ("AVX2", 32), "plain": ("plain vectors", 32), "bf16": ("AMX", 64)}
BF16 = "bf16"
MIXED_PART = 32  # samples that are computed together in bf16, as many as a tile has columns
_REALS = {torch.float32: "float", torch.float64: "double"}


class CompiledEvaluator:
    """Evaluate gradients in parallel threads, in each one after the other.

    nodes: maximum of pending gradients. cores: maximum of threads; None: as many as torch has. extension: the
    processor's instruction set for the kernels. No bit of a gradient depends on other gradients or on threads. Raises
    Untranslatable for a network that the kernels do not serve, or without kernels."""

    def __init__(
        self, problem: Problem, nodes: int, device: torch.device | None = None, cores: int | None = None
    ) -> None:
        self.problem = problem
        self.device = device or torch.device("cpu")
        if self.device.type != "cpu":
            raise Untranslatable("a GPU")
        if nodes < torch.get_num_threads():  # each computes with its own model
            raise Untranslatable("how to share a model among threads")
        if not isinstance(problem.data, (Classification, TextWindows)):
            raise Untranslatable("data other than labelled images and text")
        with _one_thread():
            program, self._counters = network_program(problem)
            samples, mixed = len(problem.data.batch(0, 0)[1]), problem.autocast == torch.bfloat16
            self._kernels = Kernels(program, problem, samples, problem.dtype, mixed)
            self._evaluation = Kernels(program, problem, samples, problem.dtype) if mixed else self._kernels
            if self._kernels.bytes > LARGEST_BYTES:
                raise Untranslatable("a model of this size")
            _verify(problem, program)
        self.extension = self._kernels.extension
        self.threads = SideBySide(min(cores or torch.get_num_threads(), nodes))

    def evaluate(self, pending: Sequence[PendingGradient]) -> None:
        self.threads.starmap(self._evaluate, self._parts(pending))

    def _parts(
        self, pending: Sequence[PendingGradient]
    ) -> Iterator[tuple[Sequence[PendingGradient], tuple[Tensor, Tensor], Tensor]]:
        share = self.threads.share(len(pending))
        for begin in range(0, len(pending), share):
            part = pending[begin : begin + share]
            batch = joint_batches(self.problem.data, [item.rank for item in part], [item.step for item in part])
            yield part, batch, self._masks(part)

    def _masks(self, part: Sequence[PendingGradient]) -> Tensor:
        """Draw the masks of dropout [n, their numbers] as the module itself would."""
        masks = self._kernels.new_masks(len(part))
        for row, item in zip(masks, part, strict=True):
            if len(row):
                with self.problem.drawing(item.rank, item.step):
                    self._kernels.draw(row)
        return masks

    def _evaluate(self, part: Sequence[PendingGradient], batch: tuple[Tensor, Tensor], masks: Tensor) -> None:
        xs = [item.snapshot for item in part if item.snapshot is not None]
        buffers = torch.stack([item.buffers for item in part])
        g, losses = self._kernels.gradients(xs, buffers, *batch, masks)
        self._counters.count(buffers)
        # rows, not copies: their memory is shared until the last is used, which in lock-step is at about the same time
        kept = [row.clone() for row in buffers] if buffers.numel() else [item.buffers for item in part]
        for item, x, value, statistics, loss in zip(part, xs, g, kept, losses, strict=True):
            item.set(self.problem.add_decay(value, x), statistics, loss)

    def accuracies(self, xs: Sequence[Tensor], buffers: Sequence[Tensor]) -> list[float]:
        """Return the test accuracies of models, from vectors [d] and buffers [nb]."""
        correct, total = torch.zeros(len(xs), dtype=torch.int64), 0
        for inputs, labels in evaluation_batches(self.problem.data, test=True):

            def count(model: int, inputs: Tensor = inputs, labels: Tensor = labels) -> None:
                correct[model] += (self._logits(xs[model], buffers[model], inputs).argmax(dim=1) == labels).sum()

            self.threads.starmap(count, [(model,) for model in range(len(xs))])
            total += labels.numel()
        return [int(of_one) / total for of_one in correct]

    def predict(self, x: Tensor, buffers: Tensor, inputs: Tensor) -> Tensor:
        """Return the outputs [b, classes, ...] of a model at a vector [d] with buffers [nb]: as `Problem.predict`."""
        parts = inputs.split(self.threads.share(len(inputs)))
        return torch.cat(self.threads.starmap(self._logits, ((x, buffers, part) for part in parts)))

    def _logits(self, x: Tensor, buffers: Tensor, inputs: Tensor) -> Tensor:
        return self._evaluation.logits([x], buffers.unsqueeze(0), inputs)[0]


class Kernels:
    """The compiled kernels for one network, batches of one size, and one arithmetic.

    mixed: multiply numbers in bf16, and keep activations in bf16. extension: name of the processor's instruction set,
    for messages. bytes: memory that a model's gradient uses. Raises Untranslatable without compiled kernels."""

    def __init__(
        self, program: NetworkProgram, problem: Problem, samples: int, dtype: torch.dtype, mixed: bool = False
    ) -> None:
        library = kernel_library()
        if library is None:
            raise Untranslatable("a package whose kernels no compiler has built")
        if mixed:
            _check_bf16(program)
        extension = BF16 if mixed else library.extension().decode()
        self.extension, width_bytes = EXTENSIONS[extension]
        suffix = extension if mixed else f"{_REALS[dtype]}_{extension}"
        self._gradients, self._logits = library[f"gradients_{suffix}"], None if mixed else library[f"logits_{suffix}"]
        self._gradients.restype = ctypes.c_int
        self._stored = torch.bfloat16 if mixed else dtype
        width = width_bytes // self._stored.itemsize
        tokens = program.tokens or 1
        if mixed:
            part = MIXED_PART
        elif program.tokens:  # as many whole samples as the cache holds
            part = tokens * math.ceil(samples / math.ceil(samples * tokens / PART))
        else:
            room = CACHE // (program.largest * width_bytes)
            part = min(samples, width * max(room, 1))
        together = part if program.tokens else samples  # batch norm needs all samples of a batch
        lanes, parts = math.ceil(part / width) * width, math.ceil(together / part)
        if program.tokens and lanes // width % 16 == 0:  # rows of such a length would drive each other out of the cache
            lanes += width
        self._dimension, self._tokens, self._vocabulary = problem.dimension, program.tokens, program.vocabulary
        self._drops = [(numbers * samples * tokens, kept) for numbers, kept in program.drops]
        self._arena, self._spare = program.numbers * lanes * parts, program.largest * lanes
        self._tables: list[Tensor] = []  # that the steps point to
        self._steps = (_Step * len(program.steps))(*self._c_steps(program, lanes))
        self._program = _Program(
            steps=ctypes.addressof(self._steps),
            count=len(program.steps),
            buffers=problem.start_buffers.numel(),
            input=0,
            input_numbers=1 if program.tokens else math.prod(problem.data.input_shape),
            output=program.output * lanes,
            classes=program.classes,
            tokens=program.tokens or 0,
            samples=samples * tokens,
            together=together,
            part=part,
            lanes=lanes,
            masks=sum(numbers for numbers, _ in program.drops),
            arena=self._arena // parts,
        )
        if mixed:
            scratch = library["scratch_bf16"]
            scratch.restype = ctypes.c_long
            self._scratch = scratch(ctypes.byref(self._program)) // self._stored.itemsize
        else:
            scratching = [step for step in program.steps if step.tiles or step.kind == "attend"]
            self._scratch = max((_scratch(step, tokens, width) for step in scratching), default=0)
        stored = 2 * self._arena + self._scratch
        self.bytes = stored * self._stored.itemsize + problem.dimension * dtype.itemsize

    def _c_steps(self, program: NetworkProgram, lanes: int) -> Iterator[_Step]:
        for step in program.steps:
            values = {item.name: getattr(step, item.name) for item in fields(step)}
            values["kind"] = KINDS.index(step.kind)
            for name in ("from_", "other", "third", "to", "kept"):
                values[name] *= lanes
            axes = values.pop("axes")
            routed = axes and self._stored == torch.bfloat16
            values |= {"route": route(axes), "route_back": route_back(axes)} if routed else {}
            tables = dict.fromkeys(("window", "back", "route", "route_back"), torch.int32) | {"divisor": torch.float64}
            for name, dtype in tables.items():
                if values.get(name) is not None:
                    self._tables.append(values[name].to(dtype).contiguous())
                    values[name] = self._tables[-1].data_ptr()
            yield _Step(**values)

    def new_masks(self, n: int) -> Tensor:
        """Return memory for the masks of dropout of n gradients, [n, numbers in all masks of a batch]."""
        return torch.empty(n, sum(numbers for numbers, _ in self._drops), dtype=torch.uint8)

    def draw(self, masks: Tensor) -> None:
        """Draw the masks of one batch from torch's random stream, with the bits that the module's own layers draw."""
        parts = masks.split([numbers for numbers, _ in self._drops])
        for mask, (_, kept) in zip(parts, self._drops, strict=True):
            mask.bernoulli_(kept)

    def gradients(
        self, xs: Sequence[Tensor], buffers: Tensor, inputs: Tensor, labels: Tensor, masks: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return gradients [n, d] and losses [n] at n vectors [d]. buffers: [n, nb], change in place. inputs: [n, b,
        *input_shape]. labels: [n, b], of sequences [n, b, tokens]. masks: dropout masks, see `new_masks`. Raises
        IndexError for a label outside of the classes, and for a token without a row in the network's tables."""
        if self._vocabulary:
            _check_tokens(inputs, self._vocabulary)
        n, inputs, labels = len(xs), inputs.to(xs[0].dtype).contiguous(), labels.contiguous()
        g, losses = inputs.new_empty(n, self._dimension), inputs.new_empty(n)
        arena = inputs.new_empty(self._arena + self._scratch, dtype=self._stored)
        gradients = inputs.new_empty(self._arena + self._spare, dtype=self._stored)
        # names hold the tensors whose addresses are handed over
        vectors = [x.contiguous() for x in xs]
        sizes = ctypes.c_long(n), ctypes.c_long(self._dimension)
        wrong = self._gradients(
            ctypes.byref(self._program),
            sizes[0],
            _address(g),
            sizes[1],
            *map(_address, (losses, buffers)),
            _addresses(vectors),
            *map(_address, (inputs, labels, masks, arena, gradients)),
        )
        if wrong:
            classes = self._program.classes
            outside = int(labels[(labels < 0) | (labels >= classes)][0])
            raise IndexError(f"a label must be >= 0 and < {classes}, got {outside}")
        return g, losses

    def logits(self, xs: Sequence[Tensor], buffers: Tensor, inputs: Tensor) -> Tensor:
        """Return the logits [n, samples, classes], of sequences [n, samples, classes, tokens], in evaluation, at n
        vectors [d] with buffers [n, nb]. inputs: [samples, *input_shape], the same for all."""
        if self._vocabulary:
            _check_tokens(inputs, self._vocabulary)
        inputs, vectors = inputs.to(xs[0].dtype).contiguous(), [x.contiguous() for x in xs]
        arena = inputs.new_empty(self._arena + self._scratch)
        count = inputs.numel() if self._tokens else len(inputs)
        z = inputs.new_empty(len(xs), count, self._program.classes)
        assert self._logits is not None
        self._logits(
            ctypes.byref(self._program),
            ctypes.c_long(len(xs)),
            *map(_address, (z, buffers)),
            _addresses(vectors),
            _address(inputs),
            ctypes.c_long(count),
            _address(arena),
        )
        return z.unflatten(1, (-1, self._tokens)).transpose(2, 3) if self._tokens else z


def _check_tokens(inputs: Tensor, vocabulary: int) -> None:
    """Raise IndexError for a token without a row in the network's tables."""
    for token in map(int, inputs.aminmax() if inputs.numel() else ()):
        if not 0 <= token < vocabulary:
            raise IndexError(f"a token must be >= 0 and < {vocabulary}, got {token}")


def _scratch(step: ProgramStep, tokens: int, width: int) -> int:
    """Return the numbers of scratch that a step needs in csrc/winograd.h or csrc/sequence.h. width: numbers of a vector
    register."""
    if step.kind == "attend":
        head, blocks = step.inputs // step.groups, math.ceil(tokens / width)
        return (2 * tokens + 3 * head) * blocks * width + tokens * head
    return (16 * (12 * (step.inputs + step.outputs) + 10) * width + 16 * step.inputs * step.outputs) * step.tiles


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute in one thread: small operations would wait for each other's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _address(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _addresses(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def bf16_is_there() -> bool:
    """Return whether the kernels and this processor compute in bf16."""
    library = kernel_library()
    return library is not None and bool(library.has_bf16())


def _check_bf16(program: NetworkProgram) -> None:
    """Raise Untranslatable for a network that bf16 does not serve. Also requests AMX tiles from the system."""
    if not bf16_is_there():
        raise Untranslatable("bf16 on a processor without AMX")
    if any(step.kind in SINGLE_KINDS for step in program.steps):
        raise Untranslatable("text in bf16")


def kernels_are_there() -> bool:
    """Return whether kernels were compiled when the package was installed."""
    return kernel_library() is not None


# As in csrc/program.h

_STEP = ("kind", "rectify", "from_", "other", "third", "to", "sums", "has_gradient", "adds", "other_adds", "third_adds")
_STEP += ("inputs", "outputs", "from_pixels", "to_pixels", "taps", "weight", "bias", "mean", "variance")
_STEP += ("groups", "function", "tiles", "rows", "columns", "padding", "kept", "mask", "causal")
_PROGRAM = ("count", "buffers", "input", "input_numbers", "output", "classes", "tokens", "samples", "together")
_PROGRAM += ("part", "lanes", "masks", "arena")


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in _STEP),
        *((name, ctypes.c_void_p) for name in ("window", "back", "route", "route_back", "divisor")),
        *((name, ctypes.c_double) for name in ("momentum", "eps", "slope")),
    )


class _Program(ctypes.Structure):
    _fields_ = (("steps", ctypes.c_void_p), *((name, ctypes.c_int64) for name in _PROGRAM))


def _verify(problem: Problem, program: NetworkProgram) -> None:
    """Compare gradients and logits of two models with the module's, in double precision, to detect code outside of its
    layers. Raises Untranslatable."""
    problem = problem.twin()
    inputs, labels = (part[:VERIFIED] for part in problem.data.batch(0, 0))
    points = random_points(problem, 2, dtype=torch.float64)
    xs, buffers = [x for x, _ in points], torch.stack([statistics for _, statistics in points])
    kernels = Kernels(program, problem, len(labels), torch.float64)
    logits, masks = kernels.logits(xs, buffers, inputs), kernels.new_masks(2)
    for row, mask in enumerate(masks):
        if len(mask):
            with problem.drawing(row, 0):
                kernels.draw(mask)
    g, losses = kernels.gradients(xs, buffers, inputs.expand(2, *inputs.shape), labels.expand(2, *labels.shape), masks)
    plain_inputs = inputs.double() if inputs.is_floating_point() else inputs
    for row, (x, statistics) in enumerate(points):
        parameters = [slot.view(x) for slot in problem.parameters]
        own_buffers = [slot.view(statistics) for slot in problem.buffers]
        with problem.drawing(row, 0):
            right = (*plain_gradient(problem, x, statistics, plain_inputs, labels),)
        right += (plain_outputs(problem, parameters, own_buffers, plain_inputs, training=False).detach(),)
        for value, expected in zip((g[row], buffers[row], losses[row], logits[row]), right, strict=True):
            if not is_exact(value, expected, float(expected.abs().max()) if expected.numel() else 0.0):
                raise Untranslatable(f"{type(problem.module).__name__}, which does more than its layers")
