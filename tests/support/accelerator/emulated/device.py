"""What torch.get_device_module("emu") has: the functions that torch and programs call on a type of device."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

import torch

from . import native  # pyright: ignore[reportMissingModuleSource] (compiled)

Device = torch.device | str | int | None
findings = native.findings
kernels = native.kernels
device_count = native.device_count
current_device = native.current_device
is_initialized = native.is_used
_is_in_bad_fork = native.is_bad_fork


def is_available() -> bool:
    return device_count() > 0


def init() -> None:
    native.use_device()


_lazy_init = init


def _index(device: Device) -> int:
    if device is None:
        return current_device()
    index = device if isinstance(device, int) else torch.device(device).index
    return current_device() if index is None else index


def set_device(device: Device) -> None:
    native.set_device(_index(device))


class device:
    """The current device within a block, and the one before after it."""

    def __init__(self, device: Device) -> None:
        self._index = _index(device)

    def __enter__(self) -> None:
        self._before = current_device()
        set_device(self._index)

    def __exit__(self, *error: object) -> None:
        set_device(self._before)


def synchronize(device: Device = None) -> None:
    torch.accelerator.synchronize(_index(device))


def current_stream(device: Device = None) -> torch.Stream:
    return torch.accelerator.current_stream(_index(device))


def get_device_name(device: Device = None) -> str:
    return f"Emulated accelerator {_index(device)}"


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def is_bf16_supported() -> bool:
    return True


def _generator(device: Device = None) -> torch.Generator:
    return native.default_generator(_index(device))


def manual_seed(seed: int) -> None:
    _generator().manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        _generator(index).manual_seed(seed)


def initial_seed() -> int:
    return _generator().initial_seed()


def get_rng_state(device: Device = None) -> torch.Tensor:
    return _generator(device).get_state()


def set_rng_state(state: torch.Tensor, device: Device = None) -> None:
    _generator(device).set_state(state)


def memory_allocated(device: Device = None) -> int:
    return native.memory(_index(device))[0]


def max_memory_allocated(device: Device = None) -> int:
    return native.memory(_index(device))[1]


def reset_peak_memory_stats(device: Device = None) -> None:
    native.reset_peak(_index(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    total = 16 << 30
    return total - memory_allocated(device), total


def empty_cache() -> None:
    pass


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return tuple(_generator(index) for index in range(device_count()))
    raise AttributeError(f"module 'torch.emu' has no attribute {name!r}")


def report_at_exit() -> None:
    """Print at the end of the process what was found wrong and not taken by findings(clear=True), and exit with 1."""
    atexit.register(_report)


def _report() -> None:
    found = findings()
    if not found:
        return
    for line in found:
        print(f"emu: {line}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
