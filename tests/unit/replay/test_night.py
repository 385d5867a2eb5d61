"""The time of all steps is that of a simulation of all steps, where only a few are simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from dsgd.cli.need import experiment_of, timing_overrides
from dsgd.experiment import Experiment
from dsgd.replay import night
from dsgd.replay.night import last_rounds, replay_night, time_of_night
from tests.support.each_row import each_row

GRADIENT_S, N_BYTES, NODES = 0.1, 1e8, 4
RING_S = 2 * (NODES - 1) / NODES * 8 * N_BYTES / 1e10
PLAIN = ("cluster.collective=ring", "cluster.latency_s=0", "cluster.bandwidth=1e10")
STRAGGLER = ("cluster.slow_nodes={1: 1.5}",)
ISLANDS = ("cluster.islands=2", "cluster.wan_bandwidth=1e9", "cluster.wan_latency_s=3ms")
STEPS = 1310  # no multiple of a round


def described(method: str, *words: str) -> Experiment:
    timing = ["parameters=2.5e7", f"nodes={NODES}", f"gradient_s={GRADIENT_S}", "cluster.bandwidth=1e10", *words]
    return experiment_of(method, timing_overrides(timing, reserved=()))


@each_row(
    ("method", "words"),
    [
        ("sync", STRAGGLER), ("sync", ISLANDS), ("localsgd tau=7", STRAGGLER), ("localsgd tau=7 switch=33", ISLANDS),
        ("diloco tau=30", (*STRAGGLER, *ISLANDS)), ("streaming tau=20", ISLANDS), ("delayfree tau=10", STRAGGLER),
        ("sgp", ISLANDS), ("dpsgd", STRAGGLER), ("sync overlap=false backups=1", STRAGGLER), ("easgd tau=4", ()),
    ],
)  # fmt: skip
def test_a_few_steps_that_repeat_say_what_all_of_them_take(method: str, words: Sequence[str]) -> None:
    experiment = described(method, *words)
    found = replay_night(method, experiment, STEPS)
    time_s, computing_s, communication_s, sent, between = night._totals(replace(experiment, trace=True), STEPS)
    assert found.simulated < STEPS / 2
    assert found.exact
    assert found.time_s == time_of_night(experiment, STEPS) == pytest.approx(time_s, rel=1e-9)
    assert [found.computing_s, found.communication_s] == pytest.approx([computing_s, communication_s], rel=1e-9)
    assert found.bytes_sent == pytest.approx(sent, rel=1e-9)
    assert found.bytes_between == (pytest.approx(between, rel=1e-9) if words and words[-1] == ISLANDS[-1] else None)


def test_measured_gradient_times_repeat_with_the_rounds(tmp_path: Path) -> None:
    """Twelve steps of two ranks, replayed by four nodes, and rounds of five."""
    trace = tmp_path / "times.csv"
    lines = [f"{step},{rank},{0.1 + 0.01 * (step * (rank + 3) % 7)}" for step in range(12) for rank in range(2)]
    trace.write_text("\n".join(["step,rank,seconds", *lines]))
    words = ["parameters=2.5e7", f"nodes={NODES}", f"cluster.compute_trace={trace}"]
    experiment = experiment_of("localsgd tau=5", timing_overrides(words, reserved=()))
    found = replay_night("localsgd", experiment, STEPS)
    assert (found.exact, found.simulated < STEPS / 2) == (True, True)
    assert found.time_s == pytest.approx(night._totals(replace(experiment, trace=True), STEPS)[0], rel=1e-9)


def test_a_step_is_a_gradient_and_a_ring_and_what_is_left_is_waiting() -> None:
    """The straggler computes 1.5 times as long, for which the three others wait; then all communicate."""
    found = replay_night("sync", described("sync overlap=false", *PLAIN, *STRAGGLER), 5000)
    assert found.step_s == pytest.approx(1.5 * GRADIENT_S + RING_S)
    computing, waiting = GRADIENT_S * 4.5 / 4, GRADIENT_S * 1.5 / 4
    seconds = [time_s / 5000 for time_s in found.seconds.values()]
    assert seconds == pytest.approx([computing, RING_S, waiting])
    assert found.bytes_sent == pytest.approx(5000 * 2 * (NODES - 1) * N_BYTES)


def test_random_times_are_simulated_as_far_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = described("localsgd tau=10", "cluster.jitter=0.3")
    whole = replay_night("localsgd", experiment, STEPS)
    assert (whole.simulated, whole.exact) == (STEPS, True)
    monkeypatch.setattr(night, "MOST_GRADIENTS", 500 * NODES)
    part = replay_night("localsgd", experiment, STEPS)
    assert (part.simulated, part.exact) == (500, False)
    assert part.time_s == pytest.approx(whole.time_s, rel=0.05)
    assert part.time_s != whole.time_s
    assert part.bytes_sent == pytest.approx(whole.bytes_sent, rel=0.01)


def test_the_last_steps_are_shown_from_their_first_gradient_on() -> None:
    shown, rows = last_rounds(described("sync overlap=false", *PLAIN, *STRAGGLER))
    assert shown == 2
    assert [name for name, _ in rows] == [f"worker {rank}" for rank in range(NODES)]
    step_s = 1.5 * GRADIENT_S + RING_S
    for rank, (_, by_kind) in enumerate(rows):
        computing_s = GRADIENT_S * (1.5 if rank == 1 else 1)
        starts = [0.0, step_s]
        ends = [end for start in starts for end in (start, start + computing_s)]
        assert [end for span in by_kind["compute"] for end in span] == pytest.approx(ends, abs=1e-9)
        spans = sorted(span for spans in by_kind.values() for span in spans)
        assert spans[-1][1] == pytest.approx(2 * step_s)
        assert all(before[1] == pytest.approx(after[0]) for before, after in pairwise(spans))


def test_of_measured_times_the_last_steps_are_shown(tmp_path: Path) -> None:
    trace = tmp_path / "times.csv"
    lines = [f"{step},{rank},{0.1 * (step + 1) + 0.01 * rank}" for step in range(7) for rank in range(2)]
    trace.write_text("\n".join(["step,rank,seconds", *lines]))
    words = ["parameters=2.5e7", "nodes=2", f"cluster.compute_trace={trace}"]
    _, rows = last_rounds(experiment_of("sync overlap=false", timing_overrides(words, reserved=())))
    computing = [[end - begin for begin, end in by_kind["compute"]] for _, by_kind in rows]
    assert computing == [pytest.approx([0.6, 0.7]), pytest.approx([0.61, 0.71])]


def test_a_timeline_of_rounds_has_all_of_their_steps() -> None:
    shown, rows = last_rounds(described("localsgd tau=6", *PLAIN))
    assert shown == 12
    assert {len(by_kind["compute"]) for _, by_kind in rows} == {12}
