from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from dsgd.data.items import Items
from dsgd.data.partition import Partition
from dsgd.engines.dist.worker.averaging import Groups
from dsgd.engines.dist.worker.compute import Compute, GradientBucket, InOrderReducer
from dsgd.problem.problem import Problem, build_problem
from tests.support.collective_workers import assert_close, own, point
from tests.support.simulate import experiment

if TYPE_CHECKING:
    from dsgd.data import Data

ALONE = Groups(0, 1)
DECAY = ["optimizer.weight_decay=0.1", "optimizer.decay_norm_and_bias=false"]
MODELS = {
    "mlp": ["model=mlp", "model.hidden=[16]"],
    "resnet8, batch norm": ["model=resnet8", "model.width=4"],
    "resnet8, group norm": ["model=resnet8", "model.width=4", "model.norm=group"],
    "vector": ["experiment=quadratic"],
}

each_model = pytest.mark.parametrize("model", MODELS)


def problem(model: str, *overrides: str) -> Problem:
    batch = [] if model == "vector" else ["batch_size=5"]
    return build_problem(experiment(*MODELS[model], "nodes=3", *batch, *DECAY, *overrides))


@contextmanager
def computing(of: Problem, devices: int = 1, trace: bool = False) -> Iterator[Compute]:
    compute = Compute(of, [torch.device("cpu")] * devices, ALONE, trace=trace)
    yield compute
    compute.close()


def gradients(of: Problem, devices: int, rank: int, step: int) -> tuple[Tensor, Tensor]:
    buffers = of.start_buffers.clone()
    with computing(of, devices) as compute:
        return compute.gradient(point(of, rank), buffers, rank, step).result(), buffers


@each_model
def test_one_device_gives_the_bits_of_the_problem(model: str) -> None:
    """In float32; gradients, statistics, several steps; alone the mean is one's own. The point is not changed."""
    of = problem(model)
    expected = [own(of, 1, step) for step in range(2)]
    at = point(of, 1)
    with computing(of) as compute:
        for ask in (compute.mean_gradient, compute.gradient):
            for step, (g, statistics) in enumerate(expected):
                buffers = of.start_buffers.clone()
                assert torch.equal(ask(at, buffers, 1, step).result(), g)
                assert torch.equal(buffers, statistics)
    assert torch.equal(at, point(of, 1))


@pytest.mark.parametrize(("model", "devices"), [("mlp", 7), ("resnet8, group norm", 2), ("vector", 3)])
def test_several_devices_give_the_gradient_of_one(model: str, devices: int) -> None:
    """Batches of 5, or of 1 with vector: slices of different lengths, and some devices without any."""
    of = problem(model, "precision=fp64")
    for step in range(2):
        assert_close(gradients(of, devices, 2, step)[0], own(of, 2, step)[0])


def test_several_devices_average_their_slices_and_statistics() -> None:
    """With batch norm: every device normalises its own slice."""
    of = problem("resnet8, batch norm", "precision=fp64")
    x = point(of, 0)
    inputs, targets = of.data.batch(0, 0)
    expected, statistics = torch.zeros_like(x), []
    for part in (slice(0, 3), slice(3, 5)):
        buffers = of.start_buffers.clone()
        of.state.bind(x, buffers)
        parameters = [slot.owner.get_parameter(slot.name) for slot in of.parameters]
        loss = of.data.loss(of.module.train()(inputs[part]), targets[part])
        found = torch.autograd.grad(loss, parameters)
        of.state.keep(x, buffers)
        expected += len(inputs[part]) / 5 * torch.cat([g.reshape(-1) for g in found])
        statistics.append(buffers)
    g, buffers = gradients(of, 2, 0, 0)
    assert_close(g, of.add_decay(expected, x))
    assert_close(buffers, (statistics[0] + statistics[1]) / 2)


@given(data=st.data(), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), replicas=st.integers(1, 3))
def test_buckets_are_reduced_in_order_and_no_earlier_than_complete(
    data: st.DataObject, sizes: Sequence[int], replicas: int
) -> None:
    """Whatever the order of the reports; what was never reported comes with the flush."""
    buckets = [GradientBucket(0, 0, range(size)) for size in sizes]
    handed: list[GradientBucket] = []
    reducer = InOrderReducer(buckets, replicas, handed.append)
    all_reports = [place for place, size in enumerate(sizes) for _ in range(size * replicas)]
    reports = data.draw(st.permutations(all_reports))
    reports = reports[: data.draw(st.integers(0, len(reports)))]
    for count, place in enumerate(reports, start=1):
        reducer.report(place)
        seen = reports[:count]
        complete = [seen.count(at) == size * replicas for at, size in enumerate(sizes)]
        assert len(handed) == [*complete, False].index(False)
    reducer.flush()
    assert [id(bucket) for bucket in handed] == [id(bucket) for bucket in buckets]


def test_a_warm_up_leaves_nothing_behind() -> None:
    of = problem("resnet8, batch norm")
    at, statistics = point(of, 1), of.start_buffers.clone()
    with computing(of, trace=True) as compute:
        compute.warm_up(at, statistics, 1, 0)
        assert compute.passes.busy_s == 0
        assert compute.passes.spans == []
        assert torch.equal(at, point(of, 1))
        assert torch.equal(statistics, of.start_buffers)
        g = compute.gradient(at, statistics, 1, 0).result()
    assert torch.equal(g, own(of, 1, 0)[0])


def test_a_failed_pass_is_the_answer_and_the_next_one_is_computed() -> None:
    of = problem("mlp")
    for devices in (1, 2):
        with computing(of, devices) as compute:
            with pytest.raises(RuntimeError, match="shape"):
                compute.gradient(of.start[:-1].clone(), of.start_buffers, 0, 0).result()
            g = compute.gradient(of.start, of.start_buffers, 0, 0).result()
        assert_close(g, of.gradient(of.start, of.start_buffers, 0, 0), 1e-6)


def test_on_a_gpu_what_is_read_ahead_in_the_warm_up_is_the_first_batch_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of, read = problem("mlp"), list[int]()
    batch = of.data.batch

    def noted(rank: int, step: int) -> tuple[Tensor, Tensor]:
        read.append(step)
        return batch(rank, step)

    monkeypatch.setattr(of.data, "batch", noted)
    with computing(of) as compute:
        monkeypatch.setattr(compute, "_prefetches", True)  # as on a GPU
        compute.warm_up(of.start, of.start_buffers, 1, 5)
        for step in (5, 6):
            compute.gradient(of.start, of.start_buffers.clone(), 1, step).result()
        compute._batches.get(1, 7)  # which is under way
    assert read == [5, 5, 6, 7]


class Drawn:
    """Samples that draw from torch's global stream, as augmentation does."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(0.0005)  # so that a batch is under way while a gradient is computed
        return index + torch.rand(4), index % 2


class Slow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.002)
        return x


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_batches_that_are_read_ahead_do_not_change_what_a_module_draws(share: float) -> None:
    """Where both draw from torch's global stream nothing is read ahead."""
    data = Items("drawn", Drawn(), Drawn(), 2, (4,), Partition(64, 1, 8, 0), torch.float32)
    module = nn.Sequential(
        nn.Linear(4, 32), *[nn.Sequential(Slow(), nn.Dropout(share)) for _ in range(3)], nn.Linear(32, 2)
    )
    of = Problem(module, cast("Data", data), torch.float32, 0.0, True, seed=3)
    expected = [of.gradient(of.start, of.start_buffers.clone(), 0, step) for step in range(5)]
    with computing(of) as compute:
        compute._prefetches = True
        found = [compute.gradient(of.start, of.start_buffers.clone(), 0, step).result() for step in range(5)]
    assert all(map(torch.equal, found, expected))
