"""Runs the program of CRASHES whose name is given; without one all others, and prints as JSON what was wrong with each:
"" or the first line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from tests.system.accelerator.programs.correct import CORRECT
from tests.system.accelerator.programs.defects import CRASHES, DEFECTS
from tests.system.accelerator.programs.on_device import DEVICE


def wrong_with(program: Callable[[], None]) -> str:
    """Run a program. Returns what the devices have noted, or the error."""
    text = ""
    try:
        program()
    except (RuntimeError, AssertionError) as error:
        text = f"{error}" or type(error).__name__
    torch.accelerator.synchronize(DEVICE)
    kept = torch.get_device_module(DEVICE).findings(clear=True)
    return (text or "".join(kept[:1])).partition("\n")[0]


def main() -> None:
    if len(sys.argv) > 1:
        CRASHES[sys.argv[1]]()
        return
    store = HashStore()
    dist.init_process_group(dist.get_default_backend_for_device(DEVICE), store=store, rank=0, world_size=1)
    print(json.dumps({name: wrong_with(program) for name, program in (CORRECT | DEFECTS).items()}))


if __name__ == "__main__":
    main()
