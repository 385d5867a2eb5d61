"""Every algorithm on emulated accelerators, with as many devices as workers, fewer and more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cases import ALGORITHMS
from tests.support.emulated import DIST, ON_DEVICES, check_like_the_cpu, completed
from tests.support.prefork import Prefork


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_on_four_devices_it_is_the_one_on_the_cpu(
    emulated: Prefork, prefork: Prefork, tmp_path: Path, algo: str
) -> None:
    check_like_the_cpu(emulated, prefork, tmp_path, algo, "nodes=4")


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_eight_workers_share_four_devices(emulated: Prefork, prefork: Prefork, tmp_path: Path, algo: str) -> None:
    check_like_the_cpu(emulated, prefork, tmp_path, algo, "nodes=8", "engine.workers_per_gpu=2")


@pytest.mark.parametrize("algo", ["sync", "gossip"])
def test_two_devices_for_each_worker_split_a_batch(
    emulated: Prefork, prefork: Prefork, tmp_path: Path, algo: str
) -> None:
    """Hooks of the backward pass run in a thread for each device, and the last one reduces the gradients of all."""
    line = (*DIST, f"algo={algo}", "nodes=2", "precision=fp64", "optimizer.momentum=0.9")
    run = completed(emulated, tmp_path / "emulated", *line, ON_DEVICES, "engine.gpus_per_node=2")
    assert run.devices == ["emu:0", "emu:1", "emu:2", "emu:3"]
    if algo == "sync":  # sums in another order
        plain = completed(prefork, tmp_path / "cpu", *line)
        assert run.summary["test_loss"] == pytest.approx(plain.summary["test_loss"], rel=1e-12)
