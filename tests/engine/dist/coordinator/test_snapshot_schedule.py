"""What is gathered at the end of a run, in whatever order it comes."""

from __future__ import annotations

from dsgd.engines.dist.control import Message
from dsgd.engines.dist.coordinator.membership import Membership
from dsgd.engines.dist.coordinator.snapshot_schedule import SnapshotSchedule
from dsgd.engines.dist.coordinator.snapshots import LAST, Snapshot
from tests.support.cases import prepared


def running(algo: str, *overrides: str) -> tuple[SnapshotSchedule, list[Message]]:
    """Two workers, and what they are asked for."""
    experiment = prepared("experiment=quadratic", f"algo={algo}", "nodes=2", "budget.steps=4", *overrides)
    members, asked = Membership(experiment, 60.0, print), list[Message]()
    for member in members.members:
        member.ready = True
    return SnapshotSchedule(experiment, members, lambda clients, message: asked.append(message), None), asked


def ending() -> SnapshotSchedule:
    """Two workers in lock-step that have been asked for the last mark."""
    schedule, _ = running("sync", "eval.every_steps=2")
    schedule.request_last(1.0)
    return schedule


def add(schedule: SnapshotSchedule, key: str, steps: int = 2) -> None:
    for node in range(2):
        schedule.add(node, key, Snapshot(steps, 0.5, {}, {}, {}), training=False)


def test_a_mark_that_comes_when_all_have_ended_counts_and_is_before_the_last() -> None:
    """What workers hand in takes longer than their word that they have ended."""
    schedule = ending()
    schedule.steps_under_way = True
    add(schedule, "step:2")
    add(schedule, LAST)
    assert [pending.key for pending in schedule.take_complete(1.0)] == ["step:2", LAST]


def test_a_mark_of_a_step_that_somebody_has_not_made_is_not_waited_for() -> None:
    """Of a run that has diverged: whoever has handed in the last mark made no further step."""
    schedule = ending()
    schedule.steps_under_way = True
    schedule.add(0, LAST, Snapshot(2, 0.5, {}, {}, {}), training=False)
    assert not schedule.add(1, "step:4", Snapshot(4, 0.6, {}, {}, {}), training=False)
    schedule.add(1, LAST, Snapshot(4, 0.6, {}, {}, {}), training=False)
    assert [pending.key for pending in schedule.take_complete(1.0)] == [LAST]


def test_a_mark_that_comes_when_time_has_run_out_does_not_count() -> None:
    """Others may not have come so far."""
    schedule = ending()
    add(schedule, "step:2")
    add(schedule, LAST)
    assert [pending.key for pending in schedule.take_complete(1.0)] == [LAST]


def test_a_node_has_handed_in_its_last_mark_though_marks_of_steps_wait() -> None:
    schedule = ending()
    schedule.steps_under_way = True
    for key in ("step:2", LAST):
        schedule.add(0, key, Snapshot(2, 0.5, {}, {}, {}), training=False)
    assert (schedule.has_last(0), schedule.has_last(1)) == (True, False)


def test_a_checkpoint_is_behind_the_marks_that_were_requested_before_it() -> None:
    """Where workers race. It counts them, whatever comes first."""
    schedule, _ = running("gossip", "eval.every_time_s=0.3")
    schedule.request_due(1.0, 0.4, stopping=True)
    for key in ("checkpoint:1", "time:1"):
        add(schedule, key)
    assert [pending.key for pending in schedule.take_complete(1.0)] == ["time:1", "checkpoint:1"]


def test_in_lock_step_the_mark_of_a_step_is_before_its_checkpoint() -> None:
    schedule, _ = running("sync", "eval.every_steps=1")
    schedule.steps_under_way = True
    schedule.request_due(1.0, 0.4, stopping=True)
    for key in ("checkpoint:1", "step:1"):
        add(schedule, key, steps=1)
    assert [pending.key for pending in schedule.take_complete(1.0)] == ["step:1", "checkpoint:1"]


def test_a_checkpoint_that_came_too_late_is_asked_for_further_ahead() -> None:
    schedule, asked = running("sync", "eval.every_steps=2")
    for number in (1, 2, 3):
        schedule.request_due(1.0, 0.4, stopping=True)
        schedule.retry_checkpoint(f"checkpoint:{number}")
    assert [message["steps"] for message in asked] == [1, 2, 4]
