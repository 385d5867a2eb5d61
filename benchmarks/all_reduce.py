"""What averaging gradients over two workers costs, beside torch's DistributedDataParallel.

    python benchmarks/all_reduce.py [--batch 32] [--steps 3] [--repeats 7] [--no-keep-memory]

Synchronous SGD, ResNet-18 on 64 x 64 images, two processes on this machine over loopback, one thread of arithmetic
each. Ours sums in a ring, or with gloo, as DistributedDataParallel does. The ways take turns within one run; seconds
per step, medians over the rounds. ratio: over the step of a plain training loop without communication, both processes
at work. CPU s: of one worker's process, its communication threads included; on two cores that is what bounds the step,
and it depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from itertools import pairwise
from multiprocessing.queues import SimpleQueue

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from dsgd.engines.dist.pairwise.plane import Plane
from dsgd.engines.dist.worker.averaging import Averaging, Groups, GroupSummation, join_rings
from dsgd.engines.dist.worker.compute import Compute
from dsgd.host.resources import keep_freed_memory
from dsgd.optim.optimizer import SGD
from dsgd.problem.problem import Problem

WORKERS = 2
HOST, TOKEN = "127.0.0.1", b"a benchmark's key"
CPU = [torch.device("cpu")]
CLASSES = 1000
LR, MOMENTUM, WEIGHT_DECAY = 0.001, 0.9, 1e-4
TIME_LIMIT_S = 120.0
WIDTHS = (35, 10, 7, 10, 7)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.residual = nn.Sequential(
            *_convolution(inputs, outputs, 3, stride), nn.ReLU(), *_convolution(outputs, outputs, 3, 1)
        )
        self.shortcut = nn.Identity() if stride == 1 else nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x))


def resnet18() -> nn.Sequential:
    """He et al. 2015, table 1: 11,689,512 parameters."""
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [Block(inputs, outputs) for inputs, outputs in pairwise(widths)]
    stem = [*_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]


class Noise:
    """The same random images in every step: what is timed is not the data."""

    classes = CLASSES
    input_shape = (3, 64, 64)

    def __init__(self, batch_size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(batch_size, *self.input_shape, generator=generator)
        self.samples = batch_size
        self.train_set = self.test_set = images, torch.randint(CLASSES, (batch_size,), generator=generator)

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        return self.train_set

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)


def plain(module: nn.Module, data: Noise) -> Callable[[], None]:
    """One step of a training loop as everybody writes it."""
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)

    def step() -> None:
        inputs, targets = data.batch(0, 0)
        optimizer.zero_grad()
        data.loss(module(inputs), targets).backward()
        optimizer.step()

    return step


def flat(problem: Problem, gradient: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], None]:
    """One step on the flat vector."""
    optimizer = SGD(momentum=MOMENTUM)
    x, buffers = problem.start.clone(), problem.start_buffers.clone()
    velocity = None

    def step() -> None:
        nonlocal velocity
        velocity = optimizer.step(x, gradient(x, buffers), velocity, LR)

    return step


@contextmanager
def every_way(batch_size: int, groups: Groups, gloo: Groups) -> Iterator[dict[str, Callable[[], None]]]:
    data = Noise(batch_size)
    torch.manual_seed(0)
    module = resnet18()
    problem, other = (
        Problem(copy.deepcopy(module), data, torch.float32, WEIGHT_DECAY, decay_norm_and_bias=True) for _ in range(2)
    )
    compute, with_gloo = Compute(problem, CPU, groups), Compute(other, CPU, gloo)
    averaging = Averaging(groups, CPU[0])

    def after_the_pass(x: Tensor, buffers: Tensor) -> Tensor:
        return averaging.all_reduce_mean(compute.gradient(x, buffers, 0, 0).result()).result()

    def parallel(views: bool) -> Callable[[], None]:
        return plain(DistributedDataParallel(copy.deepcopy(module), gradient_as_bucket_view=views), data)

    yield {
        "plain, no communication": plain(copy.deepcopy(module), data),
        "ours, no communication": flat(problem, lambda x, b: compute.gradient(x, b, 0, 0).result()),
        "ours, overlapped": flat(problem, lambda x, b: compute.mean_gradient(x, b, 0, 0).result()),
        "ours, overlapped, gloo": flat(other, lambda x, b: with_gloo.mean_gradient(x, b, 0, 0).result()),
        "ours, one all-reduce after the pass": flat(problem, after_the_pass),
        "DDP": parallel(False),
        "DDP, gradient_as_bucket_view": parallel(True),
    }
    averaging.close()
    compute.close()
    with_gloo.close()


@contextmanager
def both_groups(rank: int, store: TCPStore) -> Iterator[tuple[Groups, Groups]]:
    """The ring, and a process group of gloo, which is also DistributedDataParallel's."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    limit = timedelta(seconds=TIME_LIMIT_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORKERS, timeout=limit)
    assert dist.group.WORLD is not None
    gloo = GroupSummation(rank, dist.group.WORLD)
    with Plane(rank, WORKERS, HOST, TOKEN, 1, torch.float32, TIME_LIMIT_S, TIME_LIMIT_S, print) as plane:
        store.set(f"port of {rank}", str(plane.port))
        with closing(join_rings(plane, rank, WORKERS, (HOST, int(store.get(f"port of {1 - rank}"))), CPU[0])) as groups:
            yield groups, Groups(rank, WORKERS, gloo)
    gloo.close()


def work(rank: int, port: int, options: argparse.Namespace, results: SimpleQueue[dict[str, list[float]]]) -> None:
    if options.keep_memory:
        keep_freed_memory()
    torch.set_num_threads(1)
    store = TCPStore(HOST, port, is_master=False)
    with both_groups(rank, store) as both, every_way(options.batch, *both) as ways:
        seconds: dict[str, list[tuple[float, ...]]] = {name: [] for name in ways}
        for repeat in range(options.repeats + 1):
            for name, step in ways.items() if repeat % 2 else reversed(ways.items()):
                dist.barrier()
                begin = time.perf_counter(), time.process_time()
                for _ in range(options.steps):
                    step()
                end = time.perf_counter(), time.process_time()
                if repeat:  # the first round is there to warm up
                    seconds[name].append(tuple((b - a) / options.steps for a, b in zip(begin, end, strict=True)))
        dist.barrier()
    if rank == 0:
        results.put({name: [statistics.median(kind) for kind in zip(*of, strict=True)] for name, of in seconds.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32, help="images per worker and step")
    parser.add_argument("--steps", type=int, default=3, help="of a round")
    parser.add_argument("--repeats", type=int, default=7, help="rounds")
    parser.add_argument(
        "--keep-memory", action=argparse.BooleanOptionalAction, default=True, help="see keep_freed_memory"
    )
    options = parser.parse_args()
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    workers = [context.Process(target=work, args=(rank, store.port, options, results)) for rank in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit(f"workers ended with {[worker.exitcode for worker in workers]}")
    medians = results.get()
    print(f"batch {options.batch} per worker, {options.steps} steps a round, median of {options.repeats} rounds")
    headings = ("step", "seconds", "ratio", "CPU s", "ratio")
    print(" ".join(f"{cell:>{width}}" for cell, width in zip(headings, WIDTHS, strict=True)))
    base = medians["plain, no communication"]
    for name, (wall, cpu) in medians.items():
        cells = (name, f"{wall:.3f}", f"{wall / base[0]:.3f}", f"{cpu:.3f}", f"{cpu / base[1]:.3f}")
        print(" ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)))


if __name__ == "__main__":
    main()
