"""Workers in processes of their own, forked like those of the engine, that check what only several can.

Worker i writes the name of every property that held to FOLDER/i. A worker that fails or hangs writes no further names.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore

from dsgd.engines.dist.pairwise.plane import Plane
from dsgd.engines.dist.worker.averaging import Averaging, CannotGoOn, Groups, join_groups, join_rings
from dsgd.engines.dist.worker.compute import Compute
from dsgd.engines.rules import step_rules
from dsgd.problem.problem import Problem, build_problem
from tests.support.forked import forked
from tests.support.planes import HOST, TOKEN, until
from tests.support.simulate import experiment

GUARD_S = 100  # against hanging
CPU = [torch.device("cpu")]
DECAY = ["precision=fp64", "optimizer.weight_decay=0.1", "optimizer.decay_norm_and_bias=false"]
MODELS = [["model=resnet8", "model.width=4", "batch_size=5"], ["experiment=quadratic"]]


class Branches(nn.Module):
    """Two layers of the same shape side by side, in the order a, b or b, a, and one that is not used."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.turned = turned
        self.first = nn.Linear(6, 6)
        self.a = nn.Linear(6, 6)
        self.unused = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        layers = (self.b, self.a) if self.turned else (self.a, self.b)
        y, z = (layer(x) for layer in layers)
        return self.last((y * self.turned + z * (not self.turned)).tanh() + (y + z))


class Points:
    """Ten random samples for every worker and step."""

    samples, classes, input_shape = 10, 3, (6,)

    def __init__(self) -> None:
        self.train_set = self.test_set = self.batch(0, 0)

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(100 * rank + step)
        inputs = torch.randn(10, 6, dtype=torch.float64, generator=generator)
        return inputs, torch.randint(3, (10,), generator=generator)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets)


def branches(turned: bool = False) -> Problem:
    torch.manual_seed(1)
    return Problem(Branches(turned), Points(), torch.float64, 0.1, decay_norm_and_bias=False)


def point(problem: Problem, rank: int) -> Tensor:
    """[d], another one for every worker: what is averaged includes the decay at each worker's own."""
    noise = torch.randn(problem.dimension, dtype=problem.dtype, generator=torch.Generator().manual_seed(rank))
    return problem.start + 0.1 * noise


def own(problem: Problem, rank: int, step: int) -> tuple[Tensor, Tensor]:
    """What the worker's own gradient is, and its buffers afterwards."""
    buffers = problem.start_buffers.clone()
    return problem.gradient(point(problem, rank), buffers, rank, step), buffers


def assert_close(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= tolerance * float(expected.abs().max())


def assert_same_everywhere(averaging: Averaging, v: Tensor) -> None:
    """The bits as integers, which double precision adds exactly."""
    for halves in v.contiguous().view(torch.int32).double().split(1 << 20):
        assert torch.equal(averaging.all_reduce_mean(halves).result(), halves)


def mean_gradient(groups: Groups) -> None:
    averaging = Averaging(groups, CPU[0])
    for overrides in MODELS:
        problem = build_problem(experiment(*overrides, f"nodes={groups.nodes}", *DECAY))
        of_each = [own(problem, rank, 3) for rank in range(groups.nodes)]
        computing = Compute(problem, CPU, groups)
        at, buffers = point(problem, groups.rank), problem.start_buffers.clone()
        for _ in range(2):
            buffers = problem.start_buffers.clone()
            found = computing.mean_gradient(at, buffers, groups.rank, 3).result()
            assert_close(found, torch.stack([g for g, _ in of_each]).mean(dim=0))
            assert_same_everywhere(averaging, found)
            assert torch.equal(buffers, of_each[groups.rank][1])
            assert torch.equal(at, point(problem, groups.rank))
            alone = computing.gradient(at, problem.start_buffers.clone(), groups.rank, 3).result()
            assert torch.equal(alone, of_each[groups.rank][0])
        computing.close()
    averaging.close()


def order_of_buckets(groups: Groups) -> None:
    """The backward passes of odd and even ranks finish a and b in a different order; both have the same shape."""
    problem = branches(turned=groups.rank % 2 == 1)
    expected = []
    for rank in range(groups.nodes):
        expected.append(own(branches(turned=rank % 2 == 1), rank, 0)[0])
    computing = Compute(problem, CPU, groups)
    found = computing.mean_gradient(point(problem, groups.rank), torch.empty(0), groups.rank, 0).result()
    computing.close()
    assert_close(found, torch.stack(expected).mean(dim=0))


def unused_parameters(groups: Groups) -> None:
    problem = branches()
    problem.weight_decay = 0.0
    computing = Compute(problem, CPU, groups)
    found = computing.mean_gradient(point(problem, groups.rank), torch.empty(0), groups.rank, 0).result()
    computing.close()
    unused = [slot.view(found) for slot in problem.parameters if slot.path.startswith("unused")]
    assert len(unused) == 2
    assert not any(part.any() for part in unused)
    assert_close(found, torch.stack([own(problem, rank, 0)[0] for rank in range(groups.nodes)]).mean(dim=0))


class Loud(Points):
    """The inputs of one worker are so large that its gradient in fp16 must be scaled less."""

    def batch(self, rank: int, step: int) -> tuple[Tensor, Tensor]:
        inputs, targets = super().batch(rank, step)
        return inputs.float() * (3000 if rank == 1 else 1), targets


def overflow(groups: Groups) -> None:
    """Of one worker: all repeat the pass, and get the mean that there is in single precision."""
    torch.manual_seed(1)
    module = nn.Linear(6, 3)
    single = Problem(module, Loud(), torch.float32, 0.1, decay_norm_and_bias=True)
    at = torch.zeros(single.dimension)
    expected = torch.stack([single.gradient(at, torch.empty(0), rank, 0) for rank in range(groups.nodes)]).mean(dim=0)
    assert float(expected.abs().max()) * 4096 > torch.finfo(torch.float16).max
    half = Problem(module, Loud(), torch.float32, 0.1, decay_norm_and_bias=True, autocast=torch.float16)
    computing, averaging = Compute(half, CPU, groups), Averaging(groups, CPU[0])
    for step in (0, 0):
        found = computing.mean_gradient(at, torch.empty(0), groups.rank, step).result()
        assert_close(found, expected, 0.01)
        assert_same_everywhere(averaging, found)
    computing.close()
    averaging.close()


def silence(groups: Groups) -> None:
    """The last worker dies."""
    problem = branches()
    computing, averaging = Compute(problem, CPU, groups), Averaging(groups, CPU[0])
    averaging.all_reduce_mean(torch.ones(3)).result()
    if groups.rank == groups.nodes - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    at, none = point(problem, groups.rank), torch.empty(0)
    failing = [computing.mean_gradient(at, none, groups.rank, step) for step in range(2)]
    failing += [averaging.all_reduce_mean(torch.ones(100_000)) for _ in range(2)]
    for future in failing:
        error = future.exception()
        assert isinstance(error, CannotGoOn), error
        assert isinstance(error, ConnectionError)
        text = str(error)
        assert text.startswith(f"worker {groups.rank}: all-reduce of "), text
        assert error.peer in (None, (groups.rank - 1) % groups.nodes, (groups.rank + 1) % groups.nodes)
        assert "\n" not in text
    assert_close(computing.gradient(at, none, groups.rank, 0).result(), own(problem, groups.rank, 0)[0])  # goes on
    computing.close()
    averaging.close()


CHECKS: list[Callable[[Groups], None]] = [
    mean_gradient, order_of_buckets, unused_parameters, overflow
]  # fmt: skip


@contextmanager
def joined(folder: Path, rank: int, nodes: int, by_torch: bool) -> Iterator[Groups]:
    """The rings of all workers, which tell each other their ports by files, or their process groups."""
    folder.mkdir(exist_ok=True)
    if by_torch:
        store = FileStore(str(folder / "store"), nodes)
        with closing(join_groups(store, rank, nodes, GUARD_S, HOST, CPU[0])) as groups:
            yield groups
        return
    with Plane(rank, nodes, HOST, TOKEN, 1, torch.float64, GUARD_S, GUARD_S, print) as plane:
        (folder / f"{rank}.new").write_text(str(plane.port))
        (folder / f"{rank}.new").rename(folder / f"{rank}.port")
        right = folder / f"{(rank + 1) % nodes}.port"
        until(right.exists)
        with closing(join_rings(plane, rank, nodes, (HOST, int(right.read_text())), CPU[0])) as groups:
            yield groups


def work(folder: Path, rank: int, nodes: int, by_torch: bool) -> None:
    signal.alarm(GUARD_S)
    torch.set_num_threads(1)
    step_rules.MOST_BYTES = 1  # every parameter is a bucket
    with (folder / str(rank)).open("w", buffering=1) as held:
        with joined(folder / "first", rank, nodes, by_torch) as groups:
            for check in CHECKS:
                check(groups)
                print(check.__name__, file=held)
        with joined(folder / "second", rank, nodes, by_torch) as groups:
            print("joining_again", file=held)
            silence(groups)
            print("silence", file=held)
        print("leaving", file=held)


def carry_out(folder: Path, nodes: int, by_torch: bool) -> None:
    """Fork the workers, and wait for their ends."""
    for pid in forked(nodes, lambda rank: work(folder, rank, nodes, by_torch)):
        os.waitpid(pid, 0)
