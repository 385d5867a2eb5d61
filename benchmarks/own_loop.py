"""A step of ResNet-18 in a loop of the user's: `dsgd.torch` beside DistributedDataParallel, and beside no distribution.

    python benchmarks/own_loop.py [--size 64] [--batch 8] [--repeats 15] [--processes 2]

Processes of one thread each, over gloo, make steps in turn: by DistributedDataParallel and torch's SGD, by `sync`, by
torch's SGD alone, and by `diloco` with tau = 100, none of whose steps here communicates. Printed are the medians over
the repeats of the ratios of neighbours, of all processes: by the clock, and by the processor time of the process with
all its threads, which depends less on what else the machine does, with the quartiles of the ratios. Then DDP and `sync`
each make a few steps in processes of their own, whose largest resident memory is compared, in vectors of the model.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import dsgd.torch
from dsgd.models.library import Torchvision

CLASSES, LR, MOMENTUM, TAU = 1000, 0.01, 0.9, 100
MEMORY_STEPS = 5
WAYS = ("ddp", "sync", "alone", "diloco")
Step = Callable[[torch.Tensor, torch.Tensor], None]


def network(size: int) -> nn.Module:
    torch.manual_seed(0)
    return Torchvision("resnet18").build((3, size, size), CLASSES)


def step_of(way: str, size: int) -> Step:
    """Return one step of a loop: forward, backward, and what the way does then."""
    module = network(size)
    optimizer = torch.optim.SGD(module.parameters(), LR, MOMENTUM)
    if way in ("sync", "diloco"):
        model = dsgd.torch.distribute(module, optimizer, way, {"tau": TAU} if way == "diloco" else {})

        def distributed(inputs: torch.Tensor, labels: torch.Tensor) -> None:
            nn.functional.cross_entropy(model(inputs), labels).backward()
            model.step()

        return distributed
    called = DistributedDataParallel(module) if way == "ddp" else module

    def plain(inputs: torch.Tensor, labels: torch.Tensor) -> None:
        nn.functional.cross_entropy(called(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return plain


def worker(rank: int, processes: int, size: int, batch: int, repeats: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    inputs, labels = torch.randn(batch, 3, size, size), torch.randint(CLASSES, (batch,))
    steps = {way: step_of(way, size) for way in WAYS}
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for repeat in range(-2, repeats):
        for way in WAYS if repeat % 2 else reversed(WAYS):
            dist.barrier()
            clock, processor = time.perf_counter(), time.process_time()
            steps[way](inputs, labels)
            if repeat >= 0:
                taken[way].append((time.perf_counter() - clock, time.process_time() - processor))
    torch.save(taken, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def memory_worker(rank: int, processes: int, size: int, batch: int, way: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{way}", rank=rank, world_size=processes)
    inputs, labels = torch.randn(batch, 3, size, size), torch.randint(CLASSES, (batch,))
    step = step_of(way, size)
    for _ in range(MEMORY_STEPS):
        step(inputs, labels)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts in KiB
    torch.save(peak, Path(folder) / f"{way}_{rank}.pt")
    dist.destroy_process_group()


def largest_memory(way: str, processes: int, size: int, batch: int) -> int:
    """Return the largest resident memory of a process that trains in a way, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(memory_worker, (processes, size, batch, way, folder), nprocs=processes)
        return max(torch.load(Path(folder) / f"{way}_{rank}.pt") for rank in range(processes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--size", 64), ("--batch", 8), ("--repeats", 15), ("--processes", 2)):
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (options.processes, options.size, options.batch, options.repeats, folder)
        spawn(worker, arguments, nprocs=options.processes)
        ranks = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(options.processes)]
    for one, other, meaning in (
        ("ddp", "sync", "throughput of sync over that of DistributedDataParallel"),
        ("diloco", "alone", "time of diloco over that of torch alone"),
    ):
        for index, measure in enumerate(("clock", "processor time")):
            pairs = [(a[index], b[index]) for taken in ranks for a, b in zip(taken[one], taken[other], strict=True)]
            low, middle, high = statistics.quantiles([a / b for a, b in pairs], n=4)
            step_s = statistics.median(b for _, b in pairs)
            print(f"{meaning}, by {measure}: {middle:.3f} ({low:.3f} to {high:.3f}), {other} {step_s:.3f} s a step")
    vector = sum(4 * parameter.numel() for parameter in network(options.size).parameters())
    used = {way: largest_memory(way, options.processes, options.size, options.batch) for way in ("ddp", "sync")}
    extra = (used["sync"] - used["ddp"]) / vector
    print(
        f"largest memory: DDP {used['ddp'] / 1e6:.0f} MB, sync {used['sync'] / 1e6:.0f} MB, {extra:+.2f} vectors more"
    )


if __name__ == "__main__":
    main()
