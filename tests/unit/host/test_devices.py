"""Devices are counted without beginning an accelerator in this process."""

from __future__ import annotations

import os
import sys
from importlib.metadata import EntryPoint

import pytest
import torch

from dsgd.host import devices
from dsgd.host.devices import Accelerators, accelerators, refusal, torch_accelerators
from dsgd.host.gpu_facts import missing_device
from tests.support.each_row import each_row

WARP = Accelerators("warp", 4, "warpgroup")


@pytest.fixture(autouse=True)
def _nothing_is_remembered() -> None:
    devices.torch_accelerators.cache_clear()
    devices._may_have_others.cache_clear()


def with_extension(monkeypatch: pytest.MonkeyPatch, extension: bool) -> None:
    """Let a package bring torch an accelerator, or none."""
    installed = [EntryPoint("warp", "warp:load", devices.EXTENSIONS)] if extension else []
    monkeypatch.setattr(devices, "entry_points", lambda group: installed)


@each_row(
    ("gpus", "extension", "of_torch", "expected"),
    [
        (0, False, WARP, Accelerators()),  # nobody asks torch
        (2, False, WARP, Accelerators("cuda", 2, "nccl")),
        (0, True, WARP, WARP),
        (2, True, WARP, WARP),  # torch takes it before CUDA
        (2, True, Accelerators("cuda", 3, "nccl"), Accelerators("cuda", 2, "nccl")),  # by CUDA_VISIBLE_DEVICES
        (2, True, Accelerators(), Accelerators("cuda", 2, "nccl")),
        (0, True, Accelerators("cuda", 3, "nccl"), Accelerators("cuda", 3, "nccl")),  # of AMD
    ],
)
def test_torch_s_accelerator_is_the_one_that_counts(
    gpus: int, extension: bool, of_torch: Accelerators, expected: Accelerators, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_extension(monkeypatch, extension)
    monkeypatch.setattr(devices, "visible_gpus", lambda environment: gpus)
    monkeypatch.setattr(devices, "torch_accelerators", lambda: of_torch)
    monkeypatch.setattr(devices, "version", lambda name: "2.13.0+cpu")
    assert accelerators({}) == expected
    devices._may_have_others.cache_clear()


def test_torch_is_asked_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: begun.append(os.getpid()) or 3)
    assert torch_accelerators().count == 3
    assert begun == []


@each_row(
    ("name", "present", "rule"),
    [
        ("auto", Accelerators(), ""),
        ("cpu", WARP, ""),
        ("accelerator", WARP, ""),
        ("warp", WARP, ""),
        ("cuda", WARP, "engine.device must be auto, cpu, accelerator or warp, which torch has here, got cuda"),
        ("warp", Accelerators(), "engine.device must be cpu or auto where torch has no accelerator, got warp"),
        (
            "accelerator",
            Accelerators("warp", 0, "", "warp: no count"),
            "engine.device must be cpu or auto where devices cannot be counted (warp: no count), got accelerator",
        ),
    ],
)
def test_a_device_that_is_not_here_is_refused_in_one_line(name: str, present: Accelerators, rule: str) -> None:
    assert refusal(name, present) == rule


def test_an_accelerator_that_cannot_count_its_devices_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def uncounted() -> int:
        raise NotImplementedError("no count\nof devices")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "device_count", uncounted)
    assert torch_accelerators() == Accelerators("xpu", 0, "", "xpu: no count of devices")
    assert torch_accelerators().described == "0 xpu devices, which cannot be counted (xpu: no count of devices),"


def test_an_accelerator_that_ends_its_process_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: sys.exit(3))
    assert torch_accelerators() == Accelerators(why="torch's accelerator did not begin: exit status 3")


@each_row(
    ("device", "line"),
    [
        ("cpu", ""),
        ("xpu:1", ""),
        ("xpu:2", "engine.device must name a device that is here, got xpu:2, of which there are 2 by now"),
        ("cuda:0", "engine.device must be cpu where torch has no cuda, got cuda:0"),
    ],
)
def test_a_device_that_has_gone_since_it_was_counted_is_named(
    device: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert missing_device(torch.device(device)) == line
