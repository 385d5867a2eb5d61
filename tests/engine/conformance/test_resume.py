"""A run that goes on from a checkpoint is the run that never stopped, bit for bit."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dsgd.engines.sim.simulated import live_vectors, restore, snapshot
from dsgd.engines.sim.simulation import Simulation
from dsgd.experiment import Experiment
from dsgd.record.checkpoint_file import find_checkpoint, read_header, read_state, write_checkpoint
from dsgd.streams import stream
from tests.support.cases import ALGORITHMS, CASES, PLAIN, described, prepared

QUADRATIC = (
    "experiment=quadratic", "nodes=4", "seed=3", "optimizer.lr=0.05", "budget.steps=20", "eval.every_steps=3",
    "eval.every_time_s=0.07", "cluster.message_bytes=1e6", "cluster.jitter=0.3", "cluster.slow_nodes={1: 4.0}",
    "cluster.stalls=[{every_s: 0.2, duration_s: 0.05}]",
)  # fmt: skip
IMAGES = (
    "model=resnet8", "model.width=4", "nodes=3", "batch_size=4", "optimizer.momentum=0.9", "optimizer.nesterov=true",
    "optimizer.weight_decay=1e-3", "budget.epochs=null", "budget.steps=5", "eval.every_epochs=null",
    "eval.every_steps=2", "eval.train_samples=32", "cluster.message_bytes=1e6", "cluster.jitter=0.3",
    "cluster.slow_nodes={1: 3.0}",
)  # fmt: skip

Marks = list[dict[str, Any]]
State = dict[str, Any]
Storage = Callable[[State], State]


def in_memory(state: State) -> State:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def on_disk(folder: Path) -> Storage:
    def through(state: State) -> State:
        write_checkpoint(folder, {"config": {}, "lines": state["progress"]["marks"]}, state)
        path = find_checkpoint(str(folder))
        assert read_header(path)["lines"] == state["progress"]["marks"]
        return read_state(path)

    return through


def run_to(simulation: Simulation, event: int) -> Marks:
    return list(simulation.run(lambda: simulation.machine.loop.processed >= event))


def in_pieces(experiment: Experiment, stops: list[int], through: Storage) -> tuple[Marks, Simulation]:
    """Stopped after each of these events, and gone on with by a new simulation each time."""
    simulation = Simulation(experiment)
    marks: Marks = []
    for event in stops:
        marks += run_to(simulation, event)
        assert simulation.status == "interrupted"
        assert simulation.machine.loop.processed == event
        state = through(snapshot(simulation))
        simulation = Simulation(experiment)
        restore(simulation, state)
    return marks + list(simulation.run()), simulation


def assert_same(found: tuple[Marks, Simulation], expected: tuple[Marks, Simulation], stops: list[int]) -> None:
    where = f"stopped after events {stops}"
    assert found[0] == expected[0], where
    one, other = found[1], expected[1]
    assert one.summary() == other.summary(), where
    for mine, theirs in zip(one.machine.nodes, other.machine.nodes, strict=True):
        assert torch.equal(mine.worker.x, theirs.worker.x), where
        assert torch.equal(mine.buffers, theirs.buffers), where
        states = mine.optimizer_state, theirs.optimizer_state
        assert (states[0] is None) == (states[1] is None), where
        if states[0] is not None and states[1] is not None:
            assert states[0].steps == states[1].steps, where
            assert states[0].vectors.keys() == states[1].vectors.keys(), where
            for name, vector in states[0].vectors.items():
                assert torch.equal(vector, states[1].vectors[name]), where
        assert mine.worker.rng.bit_generator.state == theirs.worker.rng.bit_generator.state, where
    centres = one.machine.centre(), other.machine.centre()
    assert (centres[0] is None) == (centres[1] is None), where
    if centres[0] is not None and centres[1] is not None:
        assert torch.equal(centres[0], centres[1]), where
    for vector, same in zip(live_vectors(one), live_vectors(other), strict=True):
        assert torch.equal(vector, same), where


def uninterrupted(experiment: Experiment) -> tuple[Marks, Simulation]:
    simulation = Simulation(experiment)
    return list(simulation.run()), simulation


LOSSY = ("cluster.loss=0.2", "cluster.retransmit_s=0.03", "cluster.collective=ring", "cluster.collective_messages=true")


@pytest.mark.parametrize("case", CASES, ids=described)
def test_after_any_events_of_a_noisy_quadratic(case: tuple[str, ...]) -> None:
    """Stopped twice; every third loses messages: what waits to be sent again is stored."""
    index = CASES.index(case)
    lossy = LOSSY if index % 3 == 1 else ()
    experiment = prepared(*QUADRATIC, *lossy, f"algo={case[0]}", *case[1:])
    expected = uninterrupted(experiment)
    if lossy:
        assert expected[1].summary()["messages_lost"] + expected[1].summary()["messages_resent"] > 0
    events = expected[1].machine.loop.processed
    random = sorted(map(int, stream("where to stop", index).integers(0, events, 2)))
    for stops in (random, *([[0, events - 1]] if case in PLAIN else [])):
        assert_same(in_pieces(experiment, stops, in_memory), expected, stops)


@pytest.mark.parametrize("algo", ["sync", "gossip", "adpsgd", "downpour", "diloco algo.tau=3 algo.elastic=true"])
def test_with_nodes_that_fail_and_laws_that_remember(algo: str) -> None:
    failures = "cluster.failures={every_s: 0.3, repair_s: 0.2, repair_median_s: 0.1, server_checkpoint_s: 0.1}"
    law = ("cluster.jitter_distribution=lognormal", "cluster.jitter_skew=1.5", "cluster.jitter_memory_s=0.1")
    experiment = prepared(*QUADRATIC, *f"algo={algo}".split(), failures, *law)
    expected = uninterrupted(experiment)
    assert expected[1].summary()["failures"] > 2
    events = expected[1].machine.loop.processed
    for event in (events // 3, events // 2, 4 * events // 5):
        assert_same(in_pieces(experiment, [event], in_memory), expected, [event])


@pytest.mark.parametrize("algo", ["sync", "gossip", "localsgd algo.tau=3 algo.momentum=average"])
def test_with_the_moments_of_adamw(algo: str) -> None:
    options = [option for option in QUADRATIC if not option.startswith("optimizer.")]
    experiment = prepared(*options, *f"algo={algo}".split(), "optimizer=adamw")
    expected = uninterrupted(experiment)
    event = expected[1].machine.loop.processed // 3
    assert_same(in_pieces(experiment, [event], in_memory), expected, [event])


@pytest.mark.parametrize(
    ("algo", "gradients"), [("sync", "auto"), ("dpsgd", "graphs"), ("gossip", "auto"), ("easgd", "loop")]
)
def test_in_training_with_batch_norm_and_momentum(algo: str, gradients: str, tmp_path: Path) -> None:
    """Statistics, momentum, gradients under way and the data's order: through checkpoint files."""
    experiment = prepared(*IMAGES, f"algo={algo}", f"engine.gradients={gradients}")
    expected = uninterrupted(experiment)
    events = expected[1].machine.loop.processed
    random = sorted(map(int, stream("where to stop training", ALGORITHMS.index(algo)).integers(0, events, 2)))
    assert_same(in_pieces(experiment, random, on_disk(tmp_path)), expected, random)


def test_crossings_of_a_target_between_marks_outlive_any_interruption() -> None:
    """A loss that comes to its target, leaves it and comes back: stopped before, between and after these marks."""
    noisy = (*QUADRATIC, "algo=gossip", "data.noise=1.0", "optimizer.lr=0.3", "eval.every_steps=1", "budget.steps=40")
    losses = [mark["test_loss"] for mark in uninterrupted(prepared(*noisy))[0]]
    experiment = prepared(*noisy, f"target.loss={sorted(losses[len(losses) // 3 :])[len(losses) // 3]}")
    expected = uninterrupted(experiment)
    summary = expected[1].summary()
    assert summary["first_crossing_s"] is not None
    events = expected[1].machine.loop.processed
    for stop in range(1, events, events // 6):
        assert_same(in_pieces(experiment, [stop], in_memory), expected, [stop])
