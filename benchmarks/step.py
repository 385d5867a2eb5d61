"""A step of ResNet-18 on images of 224 x 224: one worker of engine=dist, and a training loop written by hand.

    python benchmarks/step.py [--batch 8] [--steps 1] [--repeats 7] [--threads 1] [--precision fp32] [--channels-last]

Both compute the same: forward, backward, momentum 0.9, weight decay, on images that are in memory; on the GPU where
there is one, and there the loop's images are on it from the start, while the worker's come from the host as 8-bit
pixels. The hand-written loop has torch's own optimiser, the worker a flat vector of parameters and its threads. They
take turns; printed are medians per step, and the medians of the ratios of neighbours, by the clock and by the processor
time of this process, which depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from all_reduce import WEIGHT_DECAY  # beside this file
from torch import Tensor, nn

from dsgd.engines.dist.worker.averaging import Groups, finish_work
from dsgd.engines.dist.worker.batches import normalised
from dsgd.engines.dist.worker.compute import Compute
from dsgd.host.resources import keep_freed_memory
from dsgd.models.library import Torchvision
from dsgd.optim.optimizer import SGD
from dsgd.problem.precision import AUTOCAST, prepare
from dsgd.problem.problem import Problem

ALONE = Groups(0, 1)
LR, MOMENTUM, CLASSES = 0.01, 0.9, 1000
GOAL = 1.05  # of ours / plain, on a GPU


class Images:
    """The same random batch at every step. Implements `Pixels`, for GPUs."""

    samples, classes, input_shape = 1 << 20, CLASSES, (3, 224, 224)
    scale, shift = torch.full((3, 1, 1), 1 / 64), torch.full((3, 1, 1), -2.0)

    def __init__(self, batch_size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(256, (batch_size, *self.input_shape), dtype=torch.uint8, generator=generator)
        labels = torch.randint(CLASSES, (batch_size,), generator=generator)
        on_gpu = torch.cuda.is_available()
        self._pixels = (pixels.pin_memory(), labels.pin_memory()) if on_gpu else (pixels, labels)
        self.train_set = self.test_set = normalised(pixels, self, torch.float32), labels

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        return self.train_set

    def pixels(self, rank: int, step: int, pinned: bool = False) -> tuple[Tensor, Tensor]:
        return self._pixels

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets)


def ours(problem: Problem, device: torch.device) -> Callable[[], None]:
    compute = Compute(problem, [device], ALONE, late=True)
    optimizer = SGD(lr=LR, momentum=MOMENTUM)
    x, buffers = problem.start.to(device, copy=True), problem.start_buffers.to(device, copy=True)
    velocity, done = None, 0

    def step() -> None:
        nonlocal velocity, done, buffers
        buffers = buffers.clone()  # as the engine does: a mark must not see those of a pass that goes on
        g = compute.gradient(x, buffers, 0, done).result()
        velocity = optimizer.step(x, g, velocity, LR)
        done += 1

    return step


def plain(problem: Problem, device: torch.device, channels_last: bool) -> Callable[[], None]:
    memory_format = torch.channels_last if channels_last else torch.preserve_format
    module = copy.deepcopy(problem.module).to(device=device, memory_format=memory_format).train()  # pyright: ignore
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    run = torch.compile(module) if problem.compiled else module
    batch = [part.to(device) for part in problem.data.batch(0, 0)]

    def step() -> None:
        inputs, targets = batch
        if channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        context: AbstractContextManager[object] = nullcontext()
        if problem.autocast is not None:
            context = torch.autocast(device.type, problem.autocast)
        with context:
            loss = problem.data.loss(run(inputs), targets)
        loss.backward()
        optimizer.step()

    return step


def timed(step: Callable[[], None], steps: int, device: torch.device) -> tuple[float, float]:
    """Seconds a step, by the clock and of processor time."""
    begin, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    finish_work(device)
    return (time.perf_counter() - begin) / steps, (time.process_time() - cpu) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18", help="of torchvision")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1, help="of a round")
    parser.add_argument("--repeats", type=int, default=7, help="rounds")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", choices=["fp32", "tf32", "bf16"], default="fp32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    prepare(options.precision, device)
    data = Images(options.batch)
    module = Torchvision(options.model).build(data.input_shape, CLASSES)
    problem = Problem(
        module,
        data,
        torch.float32,
        WEIGHT_DECAY,
        decay_norm_and_bias=True,
        autocast=AUTOCAST.get(options.precision),
        channels_last=options.channels_last,
        compiled=options.compile,
    )
    loops = [plain(problem, device, options.channels_last), ours(problem, device)]
    for step in loops:
        timed(step, 1, device)
    found: list[list[tuple[float, float]]] = [[], []]
    for turn in range(options.repeats):
        for which in (0, 1) if turn % 2 else (1, 0):
            found[which].append(timed(loops[which], options.steps, device))
    name = f"CPU, {options.threads} threads"
    if device.type == "cuda":
        name = f"{torch.cuda.get_device_name(device)}, peak {torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB"
    print(f"{options.model}, 224 x 224, batch {options.batch}, {options.precision}, torch {torch.__version__}, {name}")
    for kind, place in (("by the clock", 0), ("processor time", 1)):
        by_plain, by_ours = ([round_[place] for round_ in of] for of in found)
        ratios = [one / other for one, other in zip(by_ours, by_plain, strict=True)]
        middle = statistics.median(by_ours)
        print(
            f"{kind:14}  ours {middle * 1e3:8.1f} ms ({options.batch / middle:.1f} images/s)  "
            f"plain {statistics.median(by_plain) * 1e3:8.1f} ms  ours / plain {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}, {options.repeats} rounds)"
        )
        if device.type == "cuda" and place == 0:  # for the table of scripts/gpu_check.sh
            ratio, part = statistics.median(ratios), f"step{', compile' if options.compile else ''}"
            ok = "ok" if ratio < GOAL else "NO"
            print("ROW", part, f"ours / plain < {GOAL}, by the clock", f"{ratio:.3f}", ok, sep="\t")


if __name__ == "__main__":
    main()
