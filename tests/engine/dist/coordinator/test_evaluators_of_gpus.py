"""Where marks are evaluated in parts, and on which devices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dsgd.engines.dist.coordinator.sharded import evaluator_ranks, is_sharded

CPU = ["cpu"]


def job(devices: dict[int, list[str]], sharded: bool | None = None) -> Any:
    experiment = SimpleNamespace(nodes=len(devices), eval=SimpleNamespace(sharded=sharded))
    return SimpleNamespace(experiment=experiment, problem=SimpleNamespace(data=None), devices=devices)


@pytest.mark.parametrize(
    ("devices", "wanted", "sharded", "ranks"),
    [
        ({0: CPU, 1: CPU, 2: CPU}, None, False, [0, 1]),
        ({0: ["cuda:0"]}, None, True, [0]),
        ({0: ["cuda:0"], 1: ["cuda:1"], 2: ["cuda:2"]}, None, True, [0, 1, 2]),
        ({0: ["cuda:0"], 1: ["cuda:0"], 2: ["cuda:1"], 3: ["cuda:1"]}, None, True, [0, 2]),
        ({0: ["cuda:0", "cuda:1"], 1: ["cuda:2", "cuda:3"]}, False, False, [0, 1]),
    ],
)
def test_an_evaluator_is_on_each_gpu(
    devices: dict[int, list[str]], wanted: bool | None, sharded: bool, ranks: list[int]
) -> None:
    assert is_sharded(job(devices, wanted)) is sharded
    assert evaluator_ranks(job(devices), most=2) == ranks
