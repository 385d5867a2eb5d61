"""Exact checkpoints of a simulation, with in-flight messages and gradients and suspended algorithms.

An algorithm is a coroutine, and a coroutine cannot be stored. But the times of events do not depend on the contents of
vectors. So a checkpoint stores the number of events so far and the contents of all live vectors. To restore, the events
are replayed without gradients and evaluations, which brings every coroutine, message, queue and random stream to its
state; then the stored contents are copied into the vectors, found by the same walk in the same order. If a user's own
algorithm branches on the contents of vectors, the fingerprint differs, and resuming is refused.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from types import AsyncGeneratorType, CellType, CoroutineType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsgd.engines.rules.marks import Progress
from dsgd.engines.sim.simulation import Simulation


class OtherRun(ValueError):
    """Raised for a stored state that does not fit the run it should be restored into."""


def snapshot(simulation: Simulation) -> dict[str, Any]:
    """Return the state between two events, as plain values and copies of all live vectors."""
    device = simulation.machine.evaluator.device
    if device.type != "cpu":
        torch.accelerator.synchronize(device)  # losses come to the host when it has computed their gradients
    return {
        "fingerprint": _fingerprint(simulation),
        "progress": asdict(simulation.progress),
        "vectors": [vector.detach().to("cpu", copy=True) for vector in live_vectors(simulation)],
    }


def restore(simulation: Simulation, state: dict[str, Any]) -> None:
    """Restore a snapshot into a new simulation of the same experiment. Raises OtherRun."""
    simulation.replay(state["fingerprint"]["events"])
    vectors = live_vectors(simulation)
    fingerprint = _fingerprint(simulation)
    if state["progress"].keys() != asdict(simulation.progress).keys():
        raise OtherRun(f"its progress is {', '.join(map(str, state['progress']))}")
    if fingerprint != state["fingerprint"] or [v.shape for v in vectors] != [v.shape for v in state["vectors"]]:
        raise OtherRun(
            f"the run went another way than before ({fingerprint} instead of {state['fingerprint']}): either its "
            "algorithm decides by the contents of vectors, or the code has changed"
        )
    for vector, stored in zip(vectors, state["vectors"], strict=True):
        vector.copy_(stored)
    findings = state["progress"]
    if findings["last_mark"] is not None:
        findings["last_mark"] = tuple(findings["last_mark"])
    simulation.progress = Progress(**findings)


def live_vectors(simulation: Simulation) -> list[Tensor]:
    """Return every vector that later events can read, each once, in an order determined by the events so far."""
    machine = simulation.machine
    vectors: list[Tensor] = []
    # the problem and the experiment are rebuilt from the configuration
    seen = {id(simulation.problem), id(simulation.experiment), id(machine.evaluator)}
    stack: list[Any] = [machine]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, (str, bytes, int, float, np.random.Generator)):
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            vectors.append(item)
        else:
            stack.extend(reversed(_references(item)))
    return vectors


def _references(item: Any) -> list[Any]:
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, (list, tuple, deque)):
        return list(item)
    if isinstance(item, (CoroutineType, AsyncGeneratorType, Iterator, CellType)):
        # local variables, values within a suspended expression, the rest of a loop
        return gc.get_referents(item)
    if isinstance(item, FunctionType):
        return list(item.__closure__ or ())
    if isinstance(item, MethodType):
        return [item.__self__]
    if isinstance(item, (type, ModuleType)):
        return []
    slots = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
    return [getattr(item, name) for name in slots if hasattr(item, name)] + list(getattr(item, "__dict__", {}).values())


def _fingerprint(simulation: Simulation) -> dict[str, Any]:
    machine = simulation.machine
    streams = json.dumps([node.worker.rng.bit_generator.state for node in machine.nodes], sort_keys=True, default=str)
    return {
        "events": machine.loop.processed,
        "time_s": machine.loop.now,
        "samples": machine.samples,
        "marks": simulation.progress.marks,
        "bytes_sent": sum(machine.network.bytes_sent(machine.loop.now)),
        "streams": hashlib.sha256(streams.encode()).hexdigest(),
    }
