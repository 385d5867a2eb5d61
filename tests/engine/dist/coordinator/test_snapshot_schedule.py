"""What is gathered at the end of a run, in whatever order it comes."""

from __future__ import annotations

from dsgd.engines.dist.coordinator.membership import Membership
from dsgd.engines.dist.coordinator.snapshot_schedule import SnapshotSchedule
from dsgd.engines.dist.coordinator.snapshots import LAST, Snapshot
from dsgd.engines.dist.job import Limits
from tests.support.cases import prepared


def ending() -> SnapshotSchedule:
    """Two workers in lock-step that have been asked for the last mark."""
    experiment = prepared("experiment=quadratic", "algo=sync", "nodes=2", "budget.steps=4", "eval.every_steps=2")
    members = Membership(experiment, Limits(60.0, 2.0), print)
    for member in members.members:
        member.ready = True
    schedule = SnapshotSchedule(experiment, members, lambda clients, message: None, None)
    schedule.request_last(1.0)
    return schedule


def add(schedule: SnapshotSchedule, key: str) -> None:
    for node in range(2):
        schedule.add(node, key, Snapshot(2, 0.5, {}, {}, {}), training=False)


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
