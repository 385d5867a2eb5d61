"""Measures a cluster from within: every worker's own steps, all at once, then the links between pairs of workers."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import combinations

import torch
from torch import Tensor
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from dsgd.experiment import Experiment
from dsgd.problem.precision import prepare
from dsgd.problem.problem import Problem
from dsgd.processes.calibration.measure import Jitter, Link, fit, measure_link
from dsgd.processes.launch.rendezvous import new_token
from dsgd.processes.pairwise.channel import Unreachable
from dsgd.processes.pairwise.plane import Plane
from dsgd.processes.worker.collectives import Groups
from dsgd.processes.worker.compute import Compute

WARM_UP = 3  # steps before the first that counts: memory is taken and kernels are chosen in them
WAIT_S = 600.0  # for the slowest worker
NEAR_S = 60.0  # for one that is known to have come as far as this one
FAILED = "failed"  # in the store: what went wrong first
POLL_S = 0.02
LOST = (ConnectionError, Unreachable)  # how another worker's failure is met


class CalibrationFailed(Exception):
    """One line: what went wrong first, in which worker."""


@dataclass(frozen=True)
class Calibration:
    """jitters: of each worker, by rank; receive_overhead_s: likewise, how much longer a step takes for each received
    vector; links: by pair of ranks."""

    jitters: list[Jitter]
    receive_overhead_s: list[float]
    links: dict[tuple[int, int], Link]


def step_times(
    experiment: Experiment,
    problem: Problem,
    devices: Sequence[torch.device],
    rank: int,
    repeats: int,
    exchange: Callable[[Tensor, int], Callable[[], Tensor]] | None = None,
) -> list[float]:
    """Seconds of `repeats` local steps as the engine makes them, a copy of x and the update included: what a step costs
    without communication. With exchange(vector, step), which returns how to wait for the answer, a vector is sent, one
    received meanwhile, and added; the wait does not count."""
    x, buffers = problem.start.to(devices[0], copy=True), problem.start_buffers.to(devices[0], copy=True)
    for device in devices:
        prepare(experiment.precision, device)
    compute = Compute(problem, devices, Groups(rank, 1, None, None, WAIT_S))
    velocity = None
    times: list[float] = []
    for step in range(WARM_UP + repeats):
        begin = time.perf_counter()
        arriving = None if exchange is None else exchange(x.to("cpu", copy=True), step)
        g = compute.gradient(x.clone(), buffers.clone(), rank, step).result()
        took_s = time.perf_counter() - begin
        received = None if arriving is None else arriving()
        begin = time.perf_counter()
        if received is not None:
            x.add_(received.to(x.device), alpha=0.0)
        velocity = experiment.optimizer.step(x, g, velocity, 0.0)  # any rate takes as long, this one stays put
        times.append(took_s + time.perf_counter() - begin)
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

    Raises CalibrationFailed in all of them if one cannot go on or does not come."""
    store.set_timeout(timedelta(seconds=WAIT_S))
    with _failure_told(store, rank):
        p = experiment.nodes
        _meet(store, "ready", rank, p)
        say(f"{p} workers make {repeats} steps at once")
        jitter = fit(step_times(experiment, problem, devices, rank, repeats))
        store.set(f"jitter/{rank}", json.dumps(asdict(jitter)))
        _meet(store, "stepped", rank, p)
        if p > 1:
            say(f"{p} workers make {repeats} steps and send a vector in each")
            before = (rank - 1) % p
            with _plane(problem, store, rank, p, address) as plane:

                def exchange(vector: Tensor, step: int) -> Callable[[], Tensor]:
                    arriving = plane.exchange(vector, step, [(rank + 1) % p], [before])
                    return lambda: arriving.result()[before]

                longer = fit(step_times(experiment, problem, devices, rank, repeats, exchange)).mean_s - jitter.mean_s
                _meet(store, "exchanged", rank, p)
            store.set(f"vector/{rank}", repr(max(0.0, longer)))
        for first, second in pairs(p):
            _meet(store, f"link/{first}/{second}", rank, p)
            if rank == first:
                say(f"link between {first} and {second}")
                with socket.create_server((address, 0)) as server:
                    server.settimeout(NEAR_S)
                    store.set(f"port/{first}/{second}", json.dumps(server.getsockname()[:2]))
                    stream, _ = server.accept()
                with stream:
                    measure_link(stream, False, link_s)
            elif rank == second:
                host, port = json.loads(store.get(f"port/{first}/{second}"))
                with socket.create_connection((host, port), NEAR_S) as stream:
                    store.set(f"measured/{first}/{second}", json.dumps(asdict(measure_link(stream, True, link_s))))
        _meet(store, "done", rank, p)
        if rank > 0:
            return None
        jitters = [Jitter(**json.loads(store.get(f"jitter/{other}"))) for other in range(p)]
        receive_overhead_s = [float(store.get(f"vector/{other}")) for other in range(p)] if p > 1 else [0.0]
        links = {pair: Link(**json.loads(store.get(f"measured/{pair[0]}/{pair[1]}"))) for pair in pairs(p)}
        _leave(store, p)
        return Calibration(jitters, receive_overhead_s, links)


def _plane(problem: Problem, store: Store, rank: int, p: int, address: str) -> Plane:
    """This worker's end of a plane of the workers."""
    if rank == 0:
        store.set("token", new_token())
    token = bytes.fromhex(store.get("token").decode())
    plane = Plane(rank, p, address, token, problem.dimension, problem.dtype, WAIT_S, WAIT_S / 10, _complain)
    store.set(f"plane/{rank}", json.dumps((address, plane.port)))
    plane.connect([tuple(json.loads(store.get(f"plane/{other}"))) for other in range(p)])
    return plane


def _complain(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def pairs(p: int) -> Iterator[tuple[int, int]]:
    """The links that are measured: all of up to 4 workers; beyond that each with its two neighbours in a ring."""
    if p <= 4:
        return combinations(range(p), 2)
    return iter([(rank, rank + 1) for rank in range(p - 1)] + [(0, p - 1)])


def _meet(store: Store, name: str, rank: int, p: int) -> None:
    """Wait for everybody; no longer than until one has failed."""
    store.set(f"{name}/at/{rank}", "")
    keys = [f"{name}/at/{other}" for other in range(p)]
    deadline = time.monotonic() + WAIT_S
    while not store.check(keys):
        if store.check([FAILED]):
            raise ConnectionAbortedError("another worker has failed")
        if time.monotonic() > deadline:
            late = ", ".join(str(other) for other, key in enumerate(keys) if not store.check([key]))
            raise TimeoutError(f"nothing from worker {late} for {WAIT_S:g} s")
        time.sleep(POLL_S)
    store.set(f"{name}/passed/{rank}", "")


@contextmanager
def _failure_told(store: Store, rank: int) -> Iterator[None]:
    """The others wait for this worker: whatever ends it they must hear of."""
    try:
        yield
    except Exception as error:
        raise CalibrationFailed(_first_failure(store, rank, error)) from error


def _first_failure(store: Store, rank: int, error: Exception) -> str:
    """What has gone wrong first, of all workers; this one's error, if nobody has said anything before."""
    own = f"worker {rank}: {type(error).__name__}: {' '.join(str(error).split())}"
    deadline = time.monotonic() + NEAR_S / 10
    try:
        # who has lost another worker lets that one speak first
        while isinstance(error, LOST) and not store.check([FAILED]) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return store.compare_set(FAILED, "", own).decode()
    except RuntimeError:  # the store is gone, and its owner with it
        return own


def _leave(store: Store, p: int) -> None:
    """The store ends with its owner: let everybody pass first."""
    store.wait([f"done/passed/{other}" for other in range(p)])
