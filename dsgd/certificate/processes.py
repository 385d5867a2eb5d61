"""Train small problems in processes, one for each rank: gloo on loopback, with the variables that torchrun sets."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.certificate.interfaces import Build
from dsgd.certificate.small_problems import SEED, SmallProblem
from dsgd.engines.dist.launch.rendezvous import listen, serve_store
from dsgd.host.fork import Children
from dsgd.models import RAISED, first_line

PATIENCE = timedelta(seconds=60)  # a rank that waits longer for the others fails
TrainingPath = dict[str, Tensor]  # parameters and buffers, by name, at each gradient: [steps, nodes, ...]


class TrainingFailed(Exception):
    """A rank has raised an exception, or has ended. The text is one line that names the rank. number: place of the
    training loop that failed; None where none had begun."""

    def __init__(self, text: str, number: int | None = None) -> None:
        super().__init__(text)
        self.number = number


def trained(problem: SmallProblem, builds: Sequence[Build]) -> list[TrainingPath]:
    """Train a problem with each training loop, one after the other, in one group of processes. Returns their paths.

    Raises TrainingFailed."""
    torch.set_num_threads(1)  # no pool of threads may exist when a process forks
    importlib.import_module("torch._dynamo")  # which torch's optimizers import: here once, not in each process
    listener = listen("127.0.0.1")
    port = listener.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="dsgd-certify-") as folder:
        files = [Path(folder) / f"{rank}.pt" for rank in range(problem.nodes)]

        def work(rank: int) -> str:
            paths = list[dict[str, Tensor]]()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of foreign code, and of torch about it
                    _enter_group(rank, problem.nodes, port)
                    if rank == 0:
                        store = serve_store(listener)
                    else:
                        listener.close()
                        store = TCPStore("127.0.0.1", port, is_master=False, timeout=PATIENCE)
                    dist.init_process_group("gloo", store=store, rank=rank, world_size=problem.nodes, timeout=PATIENCE)
                    for build in builds:
                        paths.append(_path(problem, build, rank))
                    torch.save(paths, files[rank])
                    dist.barrier()
            except RAISED as error:
                frame = traceback.extract_tb(error.__traceback__)[-1]
                text = f"rank {rank}: {first_line(error)} ({Path(frame.filename).name}:{frame.lineno})"
                return json.dumps([time.monotonic(), text, len(paths)])
            return ""

        with listener, Children() as children:
            for rank in range(problem.nodes):
                children.start(lambda rank=rank: work(rank), rank)
            failures: list[tuple[float, str, int | None]] = []
            while len(children):
                rank, ended = children.wait()
                if ended.signals:
                    raise KeyboardInterrupt
                if ended.text:
                    failures.append(tuple(json.loads(ended.text)))
                elif ended.status and not failures:
                    failures.append((0.0, f"rank {rank} ended with status {ended.status}", None))
                if failures:
                    children.end()
            if failures:  # others fail later, because they wait for the first
                _, text, number = min(failures)
                raise TrainingFailed(text, number)
        ranks = [torch.load(file, weights_only=True) for file in files]
    return [
        {name: torch.stack([path[name] for path in paths], 1) for name in paths[0]}
        for paths in zip(*ranks, strict=True)
    ]


def _enter_group(rank: int, nodes: int, port: int) -> None:
    """Set what torchrun would set for this rank, double precision, and the seed of code that draws."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": nodes, "LOCAL_WORLD_SIZE": nodes, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(SEED)


def _path(problem: SmallProblem, build: Build, rank: int) -> dict[str, Tensor]:
    """Train, and return the parameters and buffers at each gradient, [steps, ...] by name."""
    module = problem.model()
    optimizer = problem.optimizer(module)
    loop = build(module, optimizer, lambda model: problem.loss(model, rank, 0))
    points: list[dict[str, Tensor]] = []
    for step in range(problem.steps):
        module.zero_grad()
        loss = problem.loss(loop.model, rank, step)  # a wrapper may change parameters as it is called
        points.append({name: tensor.detach().clone() for name, tensor in module.state_dict().items()})
        loss.backward()
        loop.step()
    return {name: torch.stack([point[name] for point in points]) for name in points[0]}
