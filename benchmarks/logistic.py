"""How long 10 rounds of logistic regression on 128 nodes take: many tiny gradients, so what is around them shows.

    python benchmarks/logistic.py [--algo sync dpsgd] [--gradients loop auto] [--nodes 128] [--rounds 10]

Generated data of the size of the UCI spam base, 4,600 samples of 57 numbers, 2 classes; a round is one step of every
node over its whole share. Wall time of a run after start-up, marks at its start and end included, and the parts of it,
in milliseconds; medians of runs that take turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dsgd.cli.compose import composed
from dsgd.data.partition import Partition, check_share
from dsgd.engines.sim.simulation import Simulation
from dsgd.models import MLP
from dsgd.runner.configuration import configure

SAMPLES, TEST_SAMPLES, FEATURES, CLASSES = 4600, 1000, 57, 2
PARTS = ("wall", "gradients", "marks", "rest")


class Table:
    """Normal inputs, labels by a plane through them with some noise; loaded."""

    def __init__(self, partition: Partition, dtype: torch.dtype) -> None:
        rng = np.random.default_rng(partition.seed)
        inputs = rng.standard_normal((SAMPLES + TEST_SAMPLES, FEATURES))
        labels = inputs @ rng.standard_normal(FEATURES) + rng.standard_normal(len(inputs)) > 0
        whole = torch.from_numpy(inputs).to(dtype), torch.from_numpy(labels).long()
        self.train_set = (whole[0][:SAMPLES], whole[1][:SAMPLES])
        self.test_set = (whole[0][SAMPLES:], whole[1][SAMPLES:])
        self.partition = partition
        self.samples = SAMPLES
        self.classes: int | None = CLASSES
        self.input_shape: tuple[int, ...] = (FEATURES,)

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        indices = torch.from_numpy(self.partition.indices(rank, step))
        return self.train_set[0][indices], self.train_set[1][indices]

    def batches(self, ranks: Sequence[int], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
        indices = torch.from_numpy(self.partition.several(ranks, steps))
        return self.train_set[0][indices], self.train_set[1][indices]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)


@dataclasses.dataclass(frozen=True)
class Generated:
    """The configuration of `Table`."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (FEATURES,)

    @property
    def classes(self) -> int | None:
        return CLASSES

    def train_samples(self, nodes: int) -> int:
        return SAMPLES

    def check(self, nodes: int, batch_size: int) -> None:
        check_share(SAMPLES, nodes, batch_size)

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> Table:
        return Table(Partition(SAMPLES, nodes, batch_size, seed), dtype)


def timed(action: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def measured(*arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        answer = action(*arguments, **options)
        spent.append(time.perf_counter() - begin)
        return answer

    return measured


def one_run(algo: str, gradients: str, nodes: int, rounds: int) -> list[float]:
    """Milliseconds, as `PARTS`."""
    overrides = [f"algo={algo}", f"nodes={nodes}", "batch_size=1", "engine=sim", "cluster.gradient_s=0.01"]
    overrides += ["budget.epochs=null", f"budget.steps={rounds}", "eval.every_epochs=null"]
    experiment = configure(composed(overrides)).experiment
    own = {"data": Generated(), "model": MLP(hidden=[]), "batch_size": SAMPLES // nodes}
    experiment = dataclasses.replace(experiment, gradients=gradients, **own)
    simulation = Simulation(experiment)
    on_gradients: list[float] = []
    on_marks: list[float] = []
    evaluator: Any = simulation.machine.evaluator
    evaluator.evaluate = timed(evaluator.evaluate, on_gradients)
    mark: Any = simulation._mark
    simulation._mark = timed(lambda time_s: [*mark(time_s)], on_marks)
    gc.collect()
    gc.freeze()  # as dsgd-run does
    gc.set_threshold(100_000, 20, 100)
    begin = time.perf_counter()
    list(simulation.run())
    wall = time.perf_counter() - begin
    gc.unfreeze()
    parts = (wall, sum(on_gradients), sum(on_marks), wall - sum(on_gradients) - sum(on_marks))
    return [1e3 * seconds for seconds in parts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", nargs="+", default=["sync", "dpsgd"])
    parser.add_argument("--gradients", nargs="+", default=["loop", "auto"])
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.nodes} nodes, {options.rounds} rounds, {options.threads} threads, median of {options.repeats}, ms")
    print(f"{'algo':<10} {'gradients':<10}" + "".join(f"{part:>11}" for part in PARTS))
    cases = [(algo, gradients) for algo in options.algo for gradients in options.gradients]
    runs: dict[tuple[str, str], list[list[float]]] = {case: [] for case in cases}
    for case in cases:
        one_run(*case, options.nodes, options.rounds)  # the first in a process is slower
    for _ in range(options.repeats):
        for case in cases:
            runs[case].append(one_run(*case, options.nodes, options.rounds))
    for case in cases:
        cells = [statistics.median(column) for column in zip(*runs[case], strict=True)]
        print(f"{case[0]:<10} {case[1]:<10}" + "".join(f"{cell:>11.1f}" for cell in cells))


if __name__ == "__main__":
    main()
