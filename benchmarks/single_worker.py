"""What one worker loses against a plain training loop, without any communication.

    python benchmarks/single_worker.py [--repeats 7]

Ours: a clone of x, the gradient from the compute thread, a step on the flat vector. Plain: model, loss, backward,
torch.optim.SGD. Same model, batches and device (the GPU where there is one), one thread, momentum 0.9 and weight decay;
rounds take turns within one run. Medians per step; throughput is that of ours over plain, by the clock and by the CPU
time of the process, which depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from all_reduce import WEIGHT_DECAY, Noise, resnet18  # beside this file

from dsgd.cli.compose import composed
from dsgd.engines.dist.worker.averaging import Groups, finish_work
from dsgd.engines.dist.worker.compute import Compute
from dsgd.host.resources import keep_freed_memory
from dsgd.optim.optimizer import SGD
from dsgd.problem.problem import Problem, build_problem
from dsgd.runner.configuration import configure

SMALL = {  # overrides, and the steps of a round
    "mlp, digits, batch 32": (["model=mlp", "batch_size=32"], 400),
    "resnet8, digits, batch 32": (["model=resnet8", "batch_size=32"], 60),
    "resnet20, shapes, batch 32": (["model=resnet20", "data=shapes", "batch_size=32"], 8),
}
ALONE = Groups(0, 1)
WIDTHS = (28, 12, 9, 9, 11, 8)


def workloads() -> Iterator[tuple[str, Problem, int]]:
    for name, (overrides, steps) in SMALL.items():
        experiment = configure(composed([*overrides, f"optimizer.weight_decay={WEIGHT_DECAY}"])).experiment
        yield name, build_problem(experiment), steps
    large = Problem(resnet18(), Noise(16), torch.float32, WEIGHT_DECAY, decay_norm_and_bias=True)
    yield "resnet18, 64 x 64, batch 16", large, 2


def ours(problem: Problem, device: torch.device) -> Callable[[int], None]:
    """A function that trains for so many steps."""
    compute = Compute(problem, [device], ALONE)
    optimizer = SGD(lr=0.01, momentum=0.9)
    x, buffers = problem.start.to(device, copy=True), problem.start_buffers.to(device, copy=True)
    velocity, done = None, 0

    def train(steps: int) -> None:
        nonlocal velocity, done
        for _ in range(steps):
            g = compute.gradient(x.clone(), buffers, 0, done).result()
            velocity = optimizer.step(x, g, velocity, 0.01)
            done += 1
        finish_work(device)

    return train


def plain(problem: Problem, device: torch.device) -> Callable[[int], None]:
    module = copy.deepcopy(problem.module).to(device).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=problem.weight_decay)
    done = 0

    def train(steps: int) -> None:
        nonlocal done
        for _ in range(steps):
            inputs, targets = (part.to(device) for part in problem.data.batch(0, done))
            optimizer.zero_grad()
            problem.data.loss(module(inputs), targets).backward()
            optimizer.step()
            done += 1
        finish_work(device)

    return train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{device}, median of {options.repeats} rounds")
    headings = zip(("workload", "parameters", "ours ms", "plain ms", "throughput", "of CPU"), WIDTHS, strict=True)
    print(" ".join(f"{heading:>{width}}" for heading, width in headings))
    for name, problem, steps in workloads():
        loops = [plain(problem, device), ours(problem, device)]
        for train in loops:
            train(steps)
        seconds: list[list[tuple[float, float]]] = [[], []]
        for turn in range(options.repeats):
            for which in (0, 1) if turn % 2 else (1, 0):
                begin, cpu = time.perf_counter(), time.process_time()
                loops[which](steps)
                seconds[which].append(((time.perf_counter() - begin) / steps, (time.process_time() - cpu) / steps))
        by_plain, by_ours = ([statistics.median(kind) for kind in zip(*of, strict=True)] for of in seconds)
        cells = (name, f"{problem.dimension:,}", f"{by_ours[0] * 1e3:.2f}", f"{by_plain[0] * 1e3:.2f}")
        cells += (f"{by_plain[0] / by_ours[0]:.3f}", f"{by_plain[1] / by_ours[1]:.3f}")
        print(" ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)))


if __name__ == "__main__":
    main()
