"""Loops of a user's around `dsgd.torch.distribute`, in processes that a test starts.

    python -m tests.support.own_loops FOLDER NODES FUNCTION ARGUMENTS

forks so many processes, one group of gloo, of which each calls FUNCTION of a module, as module:name, with (folder,
arguments). ARGUMENTS: JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dsgd.problem.problem import Problem, build_problem
from tests.support.forked import forked
from tests.support.simulate import experiment

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300  # after which a test gives up; nothing is measured with it


def in_processes(folder: Path, function: str, arguments: Any = None, nodes: int = 2) -> None:
    """Call a function in so many processes of one group, and wait for all of them to succeed."""
    line = [sys.executable, "-m", "tests.support.own_loops", str(folder), str(nodes), function, json.dumps(arguments)]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr


def batches(problem: Problem, rank: int, steps: range) -> Iterator[Callable[[torch.nn.Module], torch.Tensor]]:
    """Yield for each step what returns the loss of this rank's batch."""
    for step in steps:
        inputs, targets = problem.data.batch(rank, step)
        yield lambda model, inputs=inputs, targets=targets: problem.data.loss(model(inputs), targets)


def problem_of(*overrides: str) -> Problem:
    """Return a problem whose module has its initial values and is bound to nothing."""
    return build_problem(experiment(*overrides))


def main(folder: str, nodes: str, function: str, arguments: str) -> int:
    """Fork the processes and wait for them. Returns 1 if any has failed."""
    module, _, name = function.partition(":")
    called = getattr(importlib.import_module(module), name)
    store = f"file://{Path(folder) / function.partition(':')[2]}.store"

    def work(rank: int) -> None:
        group = {"rank": rank, "world_size": int(nodes), "timeout": timedelta(seconds=60)}
        dist.init_process_group("gloo", init_method=store, **group)
        called(Path(folder), json.loads(arguments))

    children = forked(int(nodes), work)
    return int(sum(os.waitpid(child, 0)[1] for child in children) > 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(*sys.argv[1:]))
