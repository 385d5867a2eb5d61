"""Data on a GPU are evaluated in larger batches."""

from __future__ import annotations

import pytest
import torch

from dsgd.data.protocols import evaluation_batches
from dsgd.problem.problem import build_problem
from tests.support.simulate import experiment


def test_data_on_a_gpu_are_evaluated_in_larger_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """But batch norm's statistics are averages over batches of one size."""
    of = build_problem(experiment("data=digits", "model=resnet8", "model.width=4", "nodes=2"))
    sizes, measured, statistics = [], [], []
    for on_gpu in (False, True):
        with monkeypatch.context() as device:
            device.setattr(torch.Tensor, "is_cpu", not on_gpu)
            sizes.append([len(labels) for _, labels in evaluation_batches(of.data, test=False)])
            measured.append(of.evaluate(of.start, of.start_buffers, test=False))
            statistics.append(of.recalibrated(of.start, limit=None))
    assert sizes == [[1024, 413], [1437]]
    assert measured[0].accuracy == measured[1].accuracy
    assert measured[0].loss == pytest.approx(measured[1].loss, rel=1e-5)
    assert torch.equal(*statistics)
