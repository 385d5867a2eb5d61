"""Where points stand: what the record says, what SLURM calls the job, whether the user has cancelled it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dsgd.cli.compose import composed
from dsgd.record.writer import METRICS, SUMMARY
from dsgd.sweep.manifest import locked_sweep, point_of, read_sweep
from dsgd.sweep.slurm_jobs import finished, state, states

CASES = [
    ("completed", "", False, "completed"),
    ("completed", "CANCELLED", True, "completed"),
    ("diverged", "FAILED", False, "diverged"),
    (None, "PENDING", False, "pending"),
    (None, "RUNNING", False, "running"),
    ("interrupted", "PENDING", False, "pending"),  # it is requeued
    ("failed", "RUNNING", False, "running"),  # tried again
    ("interrupted", "", True, "cancelled"),
    (None, "CANCELLED", False, "cancelled"),
    ("interrupted", "CANCELLED", False, "interrupted"),
    ("failed", "FAILED", False, "failed"),
    (None, "FAILED", False, "failed"),
    (None, "TIMEOUT", False, "failed"),
    (None, "COMPLETED", False, "lost"),
    (None, "", False, "lost"),
]


@pytest.mark.parametrize(("record", "job", "cancelled", "expected"), CASES)
def test_record_queue_and_user_make_a_state(record: str | None, job: str, cancelled: bool, expected: str) -> None:
    summary = {} if record is None else {"status": record}
    assert state(summary, job, "None", cancelled)[0] == expected


def test_the_record_says_why() -> None:
    summary = {"status": "failed", "error": "worker 3 was killed"}
    assert state(summary, "FAILED", "NonZeroExitCode", False) == ("failed", "worker 3 was killed")


def test_what_is_complete_is_told_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    points = [point_of(composed([f"seed={seed}"]), [f"seed={seed}"], None) for seed in range(3)]
    with locked_sweep(tmp_path) as writer:
        writer.points(points)
        writer.submitting("first", points, [])
        writer.submitted("first", "12")
    for point in points:
        (tmp_path / point.folder).mkdir(parents=True)
        (tmp_path / point.folder / METRICS).write_text('{"epoch": 1}\n')
        (tmp_path / point.folder / SUMMARY).write_text('{"status": "completed", "epochs": 2, "test_accuracy": 0.5}')
    sweep = read_sweep(tmp_path)
    assert finished(sweep) == points
    found, problem = states(sweep)
    assert problem is None
    assert [(each.name, each.epoch, each.accuracy) for each in found] == [("completed", 2, 0.5)] * 3


SQUEUE = """#!/bin/sh
echo '12_1|RUNNING|None'
echo '13|CANCELLED|JobHeldUser'
"""
SACCT = """#!/bin/sh
echo '12_0|TIMEOUT'
echo '12_2|CANCELLED by 1000'
echo '12_[3-9]|PENDING'
"""


def test_what_the_queue_has_forgotten_the_data_base_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words of squeue and sacct, from two programs that print them: the test cluster has no data base."""
    for name, text in (("squeue", SQUEUE), ("sacct", SACCT)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    points = [point_of(composed([f"seed={seed}"]), [f"seed={seed}"], None) for seed in range(5)]
    with locked_sweep(tmp_path) as writer:
        writer.points(points)
        writer.submitting("first", points[:3], [])
        writer.submitted("first", "12")
        writer.submitting("second", points[3:4], [])
        writer.submitted("second", "13")
    found, problem = states(read_sweep(tmp_path))
    assert problem is None
    assert [(each.name, each.reason) for each in found] == [
        ("failed", "TIMEOUT"),
        ("running", ""),
        ("cancelled", "by scancel"),
        ("cancelled", "by scancel"),
        ("unsubmitted", ""),
    ]
