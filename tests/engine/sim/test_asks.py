"""Asks in virtual time: what one costs, who answers it and when."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from torch import Tensor

from dsgd.cluster import Cluster
from dsgd.data import Quadratic
from dsgd.worker import Algorithm, Worker
from tests.support.reference import Setting
from tests.support.simulated import run
from tests.support.timing import timed

MESSAGE = Cluster(1.0, 8e6, 0.25, message_bytes=1e6)  # 1 s through a port, and a quarter on the way


@dataclass(frozen=True)
class Asking(Algorithm):
    """Workers ask the last one before each of their gradients, with their rank; it ends after `steps` gradients.

    answers: what came, by rank."""

    steps: int = 1
    answers: dict[int, list[float]] = field(default_factory=dict)

    def answer(self, worker: Worker, v: Tensor) -> Tensor:
        worker.x.add_(v)
        return worker.x.clone()

    async def train(self, worker: Worker) -> None:
        last = worker.nodes - 1
        while not worker.done and (worker.rank < last or worker.steps < self.steps):
            if worker.rank < last:
                answer = await worker.ask(last, worker.x.new_full(worker.x.shape, worker.rank + 1))
                assert answer is not None
                self.answers.setdefault(worker.rank, []).extend(answer[:1].tolist())
            worker.step(await worker.gradient())


def test_an_ask_takes_two_messages_of_a_vector() -> None:
    """2 (a + N / B), while the peer computes: a step takes 2.5 s and 1 s."""
    simulation = timed(Asking(steps=99), Cluster(1.0, 8e6, 0.25, message_bytes=1e6, slow_nodes={1: 1e6}), 2, 5)
    assert simulation.summary()["time_s"] == pytest.approx(10 * 3.5)
    assert simulation.summary()["bytes_sent_total"] == 2 * 10e6


def test_each_is_answered_at_one_moment_by_what_the_peer_has_become() -> None:
    """Of questions that arrive together the second one finds what the first one has done."""
    algo = Asking(steps=99)
    run(Setting(nodes=3, steps=1, lr=0.0, data=Quadratic(dim=2)), algo)
    assert algo.answers == {0: [1.0], 1: [3.0]}


def test_who_has_ended_still_answers() -> None:
    """The peer ends after a second, before the first question has arrived; with a rate of 0 asks alone move it."""
    algo = Asking()
    path = run(Setting(nodes=2, steps=2, lr=0.0, data=Quadratic(dim=2)), algo, MESSAGE)
    assert algo.answers == {0: [1.0, 2.0, 3.0]}
    assert path.marks[-1]["time_s"] == pytest.approx(3 * (2.5 + 1))
