"""Measures a cluster from within: every worker's own steps, all at once, then the links between pairs of workers."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import combinations

import torch
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from dsgd.dist.collectives import Groups
from dsgd.dist.compute import Compute
from dsgd.dist.measure import Jitter, Link, fit, measure_link
from dsgd.experiment import Experiment
from dsgd.gradients.problem import Problem

WARM_UP = 3  # steps before the first that counts: memory is taken and kernels are chosen in them
WAIT_S = 600.0  # for the slowest worker


@dataclass(frozen=True)
class Calibration:
    """jitters: of each worker, by rank; links: by pair of ranks."""

    jitters: list[Jitter]
    links: dict[tuple[int, int], Link]


def step_times(
    experiment: Experiment, problem: Problem, devices: Sequence[torch.device], rank: int, repeats: int
) -> list[float]:
    """Seconds of `repeats` local steps as the engine makes them, a copy of x and the update included: what a step costs
    without communication."""
    x, buffers = problem.start.to(devices[0], copy=True), problem.start_buffers.to(devices[0], copy=True)
    compute = Compute(problem, devices, Groups(rank, 1, None, None, WAIT_S))
    velocity = None
    times: list[float] = []
    for step in range(WARM_UP + repeats):
        begin = time.perf_counter()
        g = compute.gradient(x.clone(), buffers.clone(), rank, step).result()
        velocity = experiment.optimizer.step(x, g, velocity, 0.0)  # any rate takes as long, this one stays put
        times.append(time.perf_counter() - begin)
    compute.close()
    return times[WARM_UP:]


def calibrate(
    experiment: Experiment,
    problem: Problem,
    devices: Sequence[torch.device],
    store: Store,
    rank: int,
    address: str,
    repeats: int,
    link_s: float,
    say: Callable[[str], None],
) -> Calibration | None:
    """Take part in the measurement of a cluster; all `nodes` workers must. address: of this worker's interface. say: is
    called in rank 0 with a line on what goes on. Returns what rank 0 has collected from all, None in the others.

    Raises ConnectionError or TimeoutError if a worker is lost."""
    p = experiment.nodes
    store.set_timeout(timedelta(seconds=WAIT_S))
    _meet(store, "ready", rank, p)
    say(f"{p} workers make {repeats} steps at once")
    jitter = fit(step_times(experiment, problem, devices, rank, repeats))
    store.set(f"jitter/{rank}", json.dumps(asdict(jitter)))
    _meet(store, "stepped", rank, p)
    for first, second in pairs(p):
        _meet(store, f"link/{first}/{second}", rank, p)
        if rank == first:
            say(f"link between {first} and {second}")
            with socket.create_server((address, 0)) as server:
                server.settimeout(WAIT_S)
                store.set(f"port/{first}/{second}", json.dumps(server.getsockname()[:2]))
                stream, _ = server.accept()
            with stream:
                measure_link(stream, False, link_s)
        elif rank == second:
            host, port = json.loads(store.get(f"port/{first}/{second}"))
            with socket.create_connection((host, port), WAIT_S) as stream:
                store.set(f"measured/{first}/{second}", json.dumps(asdict(measure_link(stream, True, link_s))))
    _meet(store, "done", rank, p)
    if rank > 0:
        return None
    jitters = [Jitter(**json.loads(store.get(f"jitter/{other}"))) for other in range(p)]
    links = {pair: Link(**json.loads(store.get(f"measured/{pair[0]}/{pair[1]}"))) for pair in pairs(p)}
    _leave(store, p)
    return Calibration(jitters, links)


def pairs(p: int) -> Iterator[tuple[int, int]]:
    """The links that are measured: all of up to 4 workers; beyond that each with its two neighbours in a ring."""
    if p <= 4:
        return combinations(range(p), 2)
    return iter([(rank, rank + 1) for rank in range(p - 1)] + [(0, p - 1)])


def _meet(store: Store, name: str, rank: int, p: int) -> None:
    """Wait for everybody."""
    store.set(f"{name}/at/{rank}", "")
    store.wait([f"{name}/at/{other}" for other in range(p)])
    store.set(f"{name}/passed/{rank}", "")


def _leave(store: Store, p: int) -> None:
    """The store ends with its owner: let everybody pass first."""
    store.wait([f"done/passed/{other}" for other in range(p)])
