"""An evaluation in shards: every sample is in one of them, and their sums are those of the whole."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from dsgd.data.protocols import evaluation_batches
from dsgd.problem.problem import Problem, build_problem, total
from tests.support.simulate import experiment

DATA = {
    "digits": ("data=digits", "model=resnet8", "model.width=4"),
    "quadratic": ("experiment=quadratic",),
    "import": (
        "data=import",
        "data.target=tests.unit.data.test_own_data.still",
        "data.classes=4",
        "batch_size=5",
        "model=mlp",
    ),
}
LIMIT = 13  # no shard count below divides it


@cache
def problem(data: str) -> Problem:
    return build_problem(experiment(*DATA[data], "precision=fp64", "nodes=2"))


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("test", [True, False], ids=["test", "training"])
@pytest.mark.parametrize("shards", [1, 2, 7, 400])
def test_the_sums_of_all_shards_are_those_of_the_whole(data: str, test: bool, shards: int) -> None:
    of = problem(data)
    x = of.start + 0.1 * torch.randn(of.dimension, generator=torch.Generator().manual_seed(3), dtype=of.dtype)
    whole = of.sums(x, of.start_buffers, test, LIMIT)
    parts = [of.sums(x, of.start_buffers, test, LIMIT, (i, shards)) for i in range(shards)]
    assert total(parts)[2:] == whole[2:]
    assert total(parts)[:2] == pytest.approx(whole[:2], rel=1e-13)
    assert max(part.samples for part in parts) == -(-whole.samples // shards)


@pytest.mark.parametrize("data", DATA)
def test_a_shard_holds_every_kth_sample(data: str) -> None:
    """In any data set they are taken from the same order as the whole, whatever the batches."""
    (whole,) = evaluation_batches(problem(data).data, test=True, limit=LIMIT)
    for i in range(3):
        found = list(evaluation_batches(problem(data).data, test=True, limit=LIMIT, shard=(i, 3)))
        inputs, targets = (torch.cat(column) for column in zip(*found, strict=True)) if found else (None, None)
        if inputs is None or targets is None:
            assert len(whole[0]) <= i
            continue
        assert torch.equal(inputs, whole[0][i::3])
        assert torch.equal(targets, whole[1][i::3])


def test_data_on_a_gpu_are_evaluated_in_larger_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """But batch norm's statistics are averages over batches of one size."""
    of = build_problem(experiment("data=digits", "model=resnet8", "model.width=4", "nodes=2"))
    sizes, sums, statistics = [], [], []
    for on_gpu in (False, True):
        with monkeypatch.context() as device:
            device.setattr(torch.Tensor, "is_cuda", on_gpu)
            sizes.append([len(labels) for _, labels in evaluation_batches(of.data, test=False)])
            sums.append(of.sums(of.start, of.start_buffers, test=False))
            statistics.append(of.recalibrated(of.start, limit=None))
    assert sizes == [[1024, 413], [1437]]
    assert sums[0].correct == sums[1].correct
    assert sums[0].loss == pytest.approx(sums[1].loss, rel=1e-5)
    assert torch.equal(*statistics)
