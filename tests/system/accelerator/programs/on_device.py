"""What small programs on an emulated device share: the device, its streams and tensors, and the lists they are in."""

from __future__ import annotations

from collections.abc import Callable

import torch

DEVICE = "emu:1"  # torch in the tests' own process does not know it
Programs = dict[str, Callable[[], None]]  # by name


def registers(programs: Programs) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Return a decorator that puts a function into a list of programs."""

    def register(program: Callable[[], None]) -> Callable[[], None]:
        programs[program.__name__] = program
        return program

    return register


def current() -> torch.Stream:
    return torch.accelerator.current_stream(DEVICE)


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, device=DEVICE)


def pinned(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, pin_memory=True)


def captured(work: Callable[[], None]) -> torch.accelerator.Graph:
    torch.accelerator.set_device_index(DEVICE)
    graph, side = torch.accelerator.Graph(), torch.Stream(DEVICE)
    side.wait_stream(current())
    with side, graph:
        work()
    return graph


def doubled(x: torch.Tensor) -> None:
    x.mul_(2)
