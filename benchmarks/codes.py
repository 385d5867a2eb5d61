"""How long coding and decoding take of a step with `algo=compressed` or `choco`: what to set `algo.code_s` to.

    python benchmarks/codes.py [--nodes 8] [--rounds 7] [model=resnet20 data=shapes ...]

--nodes: whose codes a worker decodes, all with `compressed`, its neighbours and itself with `choco`, 3 on a ring. Where
workers share processors they take longer, by the number of workers over that of processors.

For each code the milliseconds in which a worker codes its gradient and decodes those of all workers (PowerSGD: both
products and the basis), on one thread, and their ratio to the gradient; medians of rounds that take turns. What
follows the options are keys of dsgd-run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import cast

import numpy as np
import torch

from dsgd.algorithms.compressed import Compressed
from dsgd.cli.compose import composed
from dsgd.compression import codes
from dsgd.compression.codes import low_rank_mean
from dsgd.engines.sim.simulation import Simulation
from dsgd.runner.configuration import configure
from dsgd.worker import Engine, Worker

OPTIONS = Compressed()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=8, help="workers whose codes are decoded")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("keys", nargs="*", help="of dsgd-run: model=resnet20 data=shapes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    values = composed([*arguments.keys, "nodes=1", "cluster.gradient_s=1", "budget.steps=1", "engine=sim"])
    problem = Simulation(configure(values).experiment).problem
    x, buffers, rng = problem.start.clone(), problem.start_buffers.clone(), np.random.default_rng(0)
    problem.state.bind(x, buffers)
    a, d = problem.gradient(x, buffers, 0, 0).clone(), problem.dimension
    k = max(1, round(OPTIONS.share * d))
    worker = Worker(0, 1, x, rng, cast("Engine", None), problem.layout)

    def power_sgd() -> None:
        running, answer = low_rank_mean(worker, a, OPTIONS.rank, 0), None
        while True:
            try:
                answer = running.send(answer).vector
            except StopIteration:
                return

    def gathered(code: str) -> Callable[[], None]:
        coder = codes.coder(code, d, k, OPTIONS.levels, rng)

        def once() -> None:
            packed = coder.encode(a)
            for _ in range(arguments.nodes):
                coder.decode(packed)

        return once

    works: dict[str, Callable[[], object]] = {"gradient": lambda: problem.gradient(x, buffers, 0, 0)}
    works |= {"powersgd": power_sgd} | {code: gathered(code) for code in ("topk", "sign", "qsgd")}
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(arguments.rounds + 1):  # the first one warms up
        for name, work in works.items():
            begin = time.perf_counter()
            work()
            found[name].append(time.perf_counter() - begin)
    print(f"{d:,} numbers, {arguments.nodes} workers")
    print("what        ms  of a gradient")
    own = statistics.median(found["gradient"][1:])
    for name, times in found.items():
        taken = statistics.median(times[1:])
        print(f"{name:<9}{1e3 * taken:>6.1f}{taken / own:>15.2f}")


if __name__ == "__main__":
    main()
