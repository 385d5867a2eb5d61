from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from dsgd.engines.sim.simulated import OtherRun, restore, snapshot
from dsgd.engines.sim.simulation import Simulation
from dsgd.worker import Algorithm, Worker
from tests.support.cases import prepared

OPTIONS = ("experiment=quadratic", "nodes=3", "budget.steps=6", "cluster.jitter=0.3", "cluster.message_bytes=1e6")


class Everywhere(Algorithm):
    """Vectors in local variables, containers and half-evaluated expressions; in a variable that an inner function
    shares, and in a closure alone, which no frame holds; in a list that only a running loop still knows; in a generator
    and in an object of the algorithm's own."""

    async def train(self, worker: Worker) -> None:
        own = {"sum": worker.x.clone(), "list": [worker.x + 1, (worker.x + 2,)]}
        shared, buffer = worker.x.clone(), Buffer(worker.x)

        def remember(g: Tensor) -> Tensor:
            nonlocal shared
            shared = 0.9 * shared + g
            return shared

        def memory_of(worker: Worker) -> Any:
            memory = worker.x.clone()
            return lambda g: memory.mul_(0.9).add_(g).clone()

        def averages() -> Iterator[Tensor]:
            memory = worker.x.clone()
            while True:
                memory = 0.5 * (memory + worker.x)
                yield memory

        closed, average = memory_of(worker), averages()
        while not worker.done:
            g = (worker.x * 0.1 + own["sum"]) * 0.5 + await worker.gradient(at=next(average))
            own["sum"] = own["sum"] * 0.9 + worker.x
            for index, (part, more) in enumerate(zip([g * 0.5, g * 0.25], [g, g * 4], strict=True)):
                await worker.push((worker.rank + 1) % worker.nodes, part)
                worker.x.sub_(part + more, alpha=0.001 * (index + 1))
            for received in worker.inbox():
                worker.x.add_(received, alpha=1e-3)
            worker.step(remember(g) + closed(g) + buffer.history["first"])
            buffer.history["first"] = buffer.history["first"] * 0.5 + worker.x


class Buffer:
    """An object of the algorithm's own."""

    def __init__(self, x: Tensor) -> None:
        self.history = {"first": x.clone()}


@dataclass(frozen=True)
class ByContents(Algorithm):
    """Decides by the contents of a vector how long it waits."""

    async def train(self, worker: Worker) -> None:
        while not worker.done:
            g = await worker.gradient()
            if float(g[0]) != 0:
                await worker.push((worker.rank + 1) % worker.nodes, g)
            worker.step(g)


def new(algo: type[Algorithm]) -> Simulation:
    return Simulation(dataclasses.replace(prepared(*OPTIONS), algo=algo()))


def stopped_at(event: int, simulation: Simulation) -> list[dict[str, Any]]:
    return list(simulation.run(lambda: simulation.machine.loop.processed >= event))


def test_wherever_an_algorithm_keeps_a_vector_it_is_found() -> None:
    """A user's algorithm goes on bit for bit after any event, wherever it keeps its state."""
    whole = new(Everywhere)
    marks = list(whole.run())
    for event in range(0, whole.machine.loop.processed, 9):
        first = new(Everywhere)
        before = stopped_at(event, first)
        buffer = io.BytesIO()
        torch.save(snapshot(first), buffer)
        buffer.seek(0)
        second = new(Everywhere)
        restore(second, torch.load(buffer, weights_only=True))
        assert before + list(second.run()) == marks, f"after event {event}"
        for one, other in zip(second.machine.nodes, whole.machine.nodes, strict=True):
            assert torch.equal(one.worker.x, other.worker.x), f"after event {event}"


def test_a_snapshot_waits_for_what_a_gpu_still_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = new(Everywhere)
    stopped_at(10, simulation)
    x = simulation.machine.nodes[0].worker.x
    monkeypatch.setattr(simulation.machine.evaluator, "device", torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: x.fill_(7))
    vectors = snapshot(simulation)["vectors"]
    assert any(torch.equal(vector, torch.full_like(x, 7)) for vector in vectors)


def test_a_run_that_went_another_way_is_refused() -> None:
    """Replaying has no gradients, so what an algorithm decides by them cannot be repeated: that is said, not hidden."""
    simulation = new(ByContents)
    stopped_at(30, simulation)
    with pytest.raises(OtherRun, match="the run went another way than before"):
        restore(new(ByContents), snapshot(simulation))


def test_a_state_of_another_experiment_is_refused() -> None:
    simulation = new(Everywhere)
    stopped_at(10, simulation)
    state = snapshot(simulation)
    other = Simulation(dataclasses.replace(prepared(*OPTIONS, "seed=1"), algo=Everywhere()))
    with pytest.raises(OtherRun):
        restore(other, state)


def test_a_snapshot_changes_nothing_and_is_not_changed_by_what_follows() -> None:
    disturbed, plain = new(Everywhere), new(Everywhere)
    taken: list[dict[str, Any]] = []
    copies: list[list[Tensor]] = []

    def look() -> bool:
        taken.append(snapshot(disturbed))
        copies.append([vector.clone() for vector in taken[-1]["vectors"]])
        return False

    assert list(disturbed.run(look)) == list(plain.run())
    for state, vectors in zip(taken, copies, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(state["vectors"], vectors, strict=True))
