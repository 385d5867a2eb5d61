"""The spans of traced steps are those of the job that made the traces, by kind and on one clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsgd.traces.traced_job import read_job
from dsgd.traces.traced_timeline import seconds_by_kind, traced_timeline
from tests.support.kineto_files import Bucket, Rank, Step, lockstep_job, write_job

GRADIENTS = [[100.0, 120.0, 100.0], [130.0, 110.0, 100.0]]
FIXED_MS, BYTE_MS, ELEMENTS = 0.6, 1e-5, [250_000, 1_000_000]
TRANSFER_MS = 2 * FIXED_MS + 4 * BYTE_MS * sum(ELEMENTS)


@pytest.mark.parametrize("kind", ["gloo", "nccl"])
def test_ranks_compute_wait_for_the_last_one_and_communicate(kind: str, tmp_path: Path) -> None:
    """The clock of the second rank is 40 s ahead."""
    write_job(tmp_path, lockstep_job(GRADIENTS, ELEMENTS, FIXED_MS, BYTE_MS, kind, clocks_ms=[0.0, 400.0]))
    job = read_job(str(tmp_path))
    second_ms = 120 + TRANSFER_MS
    ends = {
        "rank 0": {"compute": [(0, 120), (second_ms, second_ms + 100)], "waiting": []},
        "rank 1": {"compute": [(0, 110), (second_ms, second_ms + 100)], "waiting": [(110, 120)]},
    }
    moving = [(120, 120 + TRANSFER_MS), (second_ms + 100, second_ms + 100 + TRANSFER_MS)]
    for name, by_kind in traced_timeline(job):
        for what, spans in {**ends[name], "communication": moving, "host": []}.items():
            shown = [(begin, end) for begin, end in by_kind[what] if end - begin > 1e-5]
            flat = [1e3 * edge for span in shown for edge in span]
            assert flat == pytest.approx([edge for span in spans for edge in span], abs=0.02), (name, what)
    means = seconds_by_kind(job)
    assert 1e3 * means["communication"] == pytest.approx(TRANSFER_MS, abs=0.01)
    assert 1e3 * means["waiting"] == pytest.approx((30 + 10 + 0) / 3 / 2, abs=0.01)
    assert 1e3 * means["compute"] == pytest.approx(sum(map(sum, GRADIENTS)) / 6, abs=0.01)
    assert sum(means.values()) == pytest.approx(sum(s.seconds for s in job.traces[0].steps) / 3)


def test_a_gap_without_communication_waits_for_the_host(tmp_path: Path) -> None:
    steps = [Step(100 * k, 100 * k + 100, [(0, 30), (60, 90)], [Bucket(10**6, 90, 90, 100)]) for k in range(3)]
    write_job(tmp_path, [Rank(rank, 2, steps) for rank in range(2)])
    means = seconds_by_kind(read_job(str(tmp_path)))
    expected = {"compute": 60, "communication": 10, "waiting": 0, "host": 30}
    assert {kind: 1e3 * mean_s for kind, mean_s in means.items()} == pytest.approx(expected, abs=0.01)
