"""What a summary says of the GPUs that computed a run."""

from __future__ import annotations

import pytest
import torch
from torch.cuda import nccl

from dsgd.host import gpu_facts as facts
from dsgd.host.gpu_facts import combined_facts, gpu_facts, peak_bytes

CPU, FIRST, SECOND = (torch.device(name) for name in ("cpu", "cuda:0", "cuda:1"))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs of one kind, of which the second has had more memory taken."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1000 * (1 + device.index))
    monkeypatch.setattr(nccl, "version", lambda: (2, 26, 2))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 90100)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(facts, "driver_version", lambda: "570.86.15")


def test_gpus_are_described_with_driver_and_libraries(cuda: None) -> None:
    described = {"gpu": "NVIDIA H100", "gpu_driver": "570.86.15", "cuda": "12.8", "cudnn": "90100", "nccl": "2.26.2"}
    assert gpu_facts([FIRST, SECOND]) == described
    assert peak_bytes([FIRST, SECOND]) == {"gpu_peak_bytes": 2000}
    assert combined_facts([described, {}, {**described, "gpu": "NVIDIA A100"}]) == {
        **described,
        "gpu": "NVIDIA H100, NVIDIA A100",
    }


def test_without_a_gpu_nothing_is_added(cuda: None) -> None:
    assert gpu_facts([CPU]) == {} == peak_bytes([CPU])
    assert combined_facts([{}, {}]) == {}
