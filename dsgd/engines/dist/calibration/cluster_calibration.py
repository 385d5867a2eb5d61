"""Measure a cluster with its own workers: the steps of all at once, then the links between pairs of workers."""

from __future__ import annotations

import json
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from itertools import combinations

import torch
from nacl.public import PrivateKey
from torch import Tensor
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from dsgd.engines.dist.calibration.measure import Jitter, MeasuredLink, fit_jitter, measure_link
from dsgd.engines.dist.launch.agreement import public_key, seal, unseal
from dsgd.engines.dist.launch.rendezvous import new_token
from dsgd.engines.dist.pairwise.channel import Unreachable
from dsgd.engines.dist.pairwise.plane import Plane
from dsgd.engines.dist.worker.averaging import Groups
from dsgd.engines.dist.worker.compute import Compute
from dsgd.experiment import Experiment
from dsgd.problem.precision import prepare
from dsgd.problem.problem import Problem

WARM_UP = 3  # steps before the first that counts: memory is taken and kernels are chosen in them
BLOCKS = 5  # of steps
WORKER_WAIT_S = 600.0  # for the slowest worker
LINK_WAIT_S = 60.0  # for the other end of a link, which has reached the same stage
FIRST_FAILURE_WAIT_S = 6.0  # for the worker that failed first to report it
STORE_POLL_S = 0.02
FAILED = "failed"  # key of the first failure in the store


class CalibrationFailed(Exception):
    """The calibration failed; the message names the first failure and its worker."""


@dataclass(frozen=True)
class Calibration:
    """The measurements of a cluster. jitters: [workers], by rank. receive_overhead_s: [workers], seconds that a
    received vector adds to a step. links: {(rank, rank): link}."""

    jitters: list[Jitter]
    receive_overhead_s: list[float]
    links: dict[tuple[int, int], MeasuredLink]


def step_times(
    experiment: Experiment,
    problem: Problem,
    devices: Sequence[torch.device],
    rank: int,
    steps: range,
    exchange: Callable[[Tensor, int], Callable[[], Tensor]] | None = None,
) -> list[float]:
    """Return the seconds of local steps as the engine makes them, with a copy of x and the update. steps: their
    numbers, each exchanged once at most. WARM_UP steps with the numbers before the first do not count.

    exchange(vector, step): starts an exchange and returns a function that waits for the received vector. With it every
    step sends a vector, receives one and adds it; waiting does not count."""
    x, buffers = problem.start.to(devices[0], copy=True), problem.start_buffers.to(devices[0], copy=True)
    for device in devices:
        prepare(experiment.precision, device)
    compute = Compute(problem, devices, Groups(rank, 1))
    state = None
    times: list[float] = []
    for step in range(steps.start - WARM_UP, steps.stop):
        begin = time.perf_counter()
        arriving = None if exchange is None else exchange(x.to("cpu", copy=True), step)
        g = compute.gradient(x.clone(), buffers.clone(), rank, step).result()
        took_s = time.perf_counter() - begin
        received = None if arriving is None else arriving()
        begin = time.perf_counter()
        if received is not None:
            x.add_(received.to(x.device), alpha=0.0)
        # any rate takes as long, this one stays put
        state = experiment.optimizer.step(x, g, state, 0.0, problem.matrices)
        times.append(took_s + time.perf_counter() - begin)
    compute.close()
    return times[WARM_UP:]


def blocks(repeats: int) -> list[range]:
    """Return the numbers of the steps, in blocks with room for WARM_UP between them. Blocks of steps alone and of steps
    with an exchange alternate, so a machine that becomes slower does so for both."""
    sizes = [repeats // BLOCKS + (i < repeats % BLOCKS) for i in range(BLOCKS)]
    starts = [WARM_UP + sum(sizes[:i]) + i * WARM_UP for i in range(BLOCKS)]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True) if size]


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
    """Measure a cluster together with all other workers. Returns the calibration in rank 0, None in the others.

    address: address of this worker's interface. link_s: seconds of a large transfer. say: prints progress lines.
    Raises CalibrationFailed in all workers if one fails or does not join."""
    store.set_timeout(timedelta(seconds=WORKER_WAIT_S))
    with _failures_reported(store, rank):
        p = experiment.nodes
        _meet(store, "ready", rank, p)
        say(
            f"{p} workers make {repeats} steps at once, and as many in which each sends a vector"
            if p > 1
            else f"one worker makes {repeats} steps"
        )
        measured = partial(step_times, experiment, problem, devices, rank)
        if p == 1:
            alone = measured(range(WARM_UP, WARM_UP + repeats))
        else:
            alone, exchanging = list[float](), list[float]()
            source = (rank - 1) % p
            with _plane(problem, store, rank, p, address) as plane:

                def exchange(vector: Tensor, step: int) -> Callable[[], Tensor]:
                    arriving = plane.exchange({(rank + 1) % p: vector}, step, [source])
                    return lambda: arriving.result()[source]

                for steps in blocks(repeats):
                    alone += measured(steps)
                    _meet(store, f"stepped/{steps.stop}", rank, p)
                    exchanging += measured(steps, exchange)
                    _meet(store, f"exchanged/{steps.stop}", rank, p)
            overhead_s = statistics.fmean(exchanging) - statistics.fmean(alone)
            store.set(f"overhead/{rank}", repr(max(0.0, overhead_s)))
        store.set(f"jitter/{rank}", json.dumps(asdict(fit_jitter(alone))))
        for first, second in rank_pairs(p):
            _meet(store, f"link/{first}/{second}", rank, p)
            if rank == first:
                say(f"link between {first} and {second}")
                with socket.create_server((address, 0)) as server:
                    server.settimeout(LINK_WAIT_S)
                    store.set(f"port/{first}/{second}", json.dumps(server.getsockname()[:2]))
                    stream, _ = server.accept()
                with stream:
                    measure_link(stream, False, link_s)
            elif rank == second:
                host, port = json.loads(store.get(f"port/{first}/{second}"))
                with socket.create_connection((host, port), LINK_WAIT_S) as stream:
                    store.set(f"measured/{first}/{second}", json.dumps(asdict(measure_link(stream, True, link_s))))
        _meet(store, "done", rank, p)
        if rank > 0:
            return None
        jitters = [Jitter(**json.loads(store.get(f"jitter/{other}"))) for other in range(p)]
        overheads_s = [float(store.get(f"overhead/{other}")) for other in range(p)] if p > 1 else [0.0]
        links = {pair: MeasuredLink(**json.loads(store.get(f"measured/{pair[0]}/{pair[1]}"))) for pair in rank_pairs(p)}
        store.wait([f"done/passed/{other}" for other in range(p)])  # the store ends with this process
        return Calibration(jitters, overheads_s, links)


def _plane(problem: Problem, store: Store, rank: int, p: int, address: str) -> Plane:
    """Connect this worker to the pairwise plane of all workers."""
    token = _shared_token(store, rank, p)
    log = partial(print, file=sys.stderr, flush=True)
    plane = Plane(rank, p, address, token, problem.dimension, problem.dtype, WORKER_WAIT_S, WORKER_WAIT_S / 10, log)
    store.set(f"plane/{rank}", json.dumps((address, plane.port)))
    plane.connect([tuple(json.loads(store.get(f"plane/{other}"))) for other in range(p)])
    return plane


def _shared_token(store: Store, rank: int, p: int) -> bytes:
    """Return a token that all workers share and readers of the store do not get."""
    if rank > 0:
        private = PrivateKey.generate()
        store.set(f"public/{rank}", public_key(private))
        return unseal(store.get(f"sealed/{rank}").decode(), private, f"calibration/{rank}")
    token = bytes.fromhex(new_token())
    for other in range(1, p):
        public = store.get(f"public/{other}").decode()
        store.set(f"sealed/{other}", seal(token, public, f"calibration/{other}"))
    return token


def rank_pairs(p: int) -> Iterator[tuple[int, int]]:
    """Return the pairs of ranks to measure: all of up to 4 workers, else each with its two neighbours in a ring."""
    if p <= 4:
        return combinations(range(p), 2)
    return iter([(rank, rank + 1) for rank in range(p - 1)] + [(0, p - 1)])


def _meet(store: Store, name: str, rank: int, p: int) -> None:
    """Wait for all workers. Raises ConnectionAbortedError as soon as one has failed, TimeoutError if one is late."""
    store.set(f"{name}/at/{rank}", "")
    keys = [f"{name}/at/{other}" for other in range(p)]
    deadline = time.monotonic() + WORKER_WAIT_S
    while not store.check(keys):
        if store.check([FAILED]):
            raise ConnectionAbortedError("another worker has failed")
        if time.monotonic() > deadline:
            late = ", ".join(str(other) for other, key in enumerate(keys) if not store.check([key]))
            raise TimeoutError(f"nothing from worker {late} for {WORKER_WAIT_S:g} s")
        time.sleep(STORE_POLL_S)
    store.set(f"{name}/passed/{rank}", "")


@contextmanager
def _failures_reported(store: Store, rank: int) -> Iterator[None]:
    """Report a failure of this worker to the others, which wait for it. Raises CalibrationFailed with the first one."""
    try:
        yield
    except Exception as error:
        failure = f"worker {rank}: {type(error).__name__}: {' '.join(str(error).split())}"
        deadline = time.monotonic() + FIRST_FAILURE_WAIT_S
        with suppress(RuntimeError):  # the store is gone, and its owner with it
            if isinstance(error, (ConnectionError, Unreachable)):  # a consequence: the worker that failed reports first
                while not store.check([FAILED]) and time.monotonic() < deadline:
                    time.sleep(STORE_POLL_S)
            failure = store.compare_set(FAILED, "", failure).decode()
        raise CalibrationFailed(failure) from error
