"""The traces of a job's ranks make one job, and traces that do not are refused in one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dsgd.traces.json_stream import TraceError
from dsgd.traces.traced_job import read_job
from tests.support.each_row import each_row
from tests.support.kineto_files import Bucket, Rank, Step, lockstep_job, write_job, write_trace

GRADIENTS = [[10.0, 20.0, 10.0], [30.0, 20.0, 10.0], [10.0, 25.0, 12.0]]
JOB = lockstep_job(GRADIENTS, [1000, 500], 1.0, 1e-3)


@pytest.mark.parametrize("clocks_ms", [None, [0.0, 7.0, -400.0]])
def test_transfer_is_the_shortest_over_ranks_and_the_rest_is_waiting(
    clocks_ms: list[float] | None, tmp_path: Path
) -> None:
    """Clocks that differ change nothing, and the ends of collectives show by how much."""
    job = read_job(str(write_job(tmp_path, lockstep_job(GRADIENTS, [1000, 500], 1.0, 1e-3, clocks_ms=clocks_ms))))
    assert job.steps == (3, 4, 5)
    assert [(joint.step, joint.n_bytes) for joint in job.collectives] == [
        (step, size) for step in (3, 4, 5) for size in (4000, 2000)
    ]
    for joint in job.collectives:
        assert 1e3 * joint.transfer_s == pytest.approx(1 + 1e-3 * (joint.n_bytes or 0))
    waits = [1e3 * job.collectives[0].waiting_s(rank) for rank in range(3)]
    assert waits == pytest.approx([20, 0, 20])
    assert [1e3 * job.clocks_s[rank] for rank in range(3)] == pytest.approx(clocks_ms or [0, 0, 0], abs=1e-3)


def test_common_steps_are_used(tmp_path: Path) -> None:
    write_job(tmp_path, JOB[:2])
    write_trace(tmp_path / "rank2.json", replace(JOB[2], steps=JOB[2].steps[:2]).trace())
    job = read_job(str(tmp_path))
    assert job.steps == (3, 4)
    assert len(job.collectives) == 4


def test_one_rank_is_enough_if_its_file_is_named(tmp_path: Path) -> None:
    write_job(tmp_path, JOB[:1])
    assert len(read_job(str(tmp_path / "rank0.pt.trace.json")).traces) == 1
    with pytest.raises(TraceError, match=r"traces of all 3 ranks, got 1 without ranks 1, 2: on_trace_ready="):
        read_job(str(tmp_path))


def of_groups() -> list[Rank]:
    """Two ranks of four take part in each all-reduce."""
    pairs = [(0, 1), (2, 3)]
    steps = [Step(0, 20, [(0, 10)], [Bucket(10, 10, 10, 12, ranks=pair) for pair in pairs])]
    return [Rank(rank, 4, steps, "nccl", groups=[range(4), *pairs]) for rank in range(4)]


def test_groups_are_apart(tmp_path: Path) -> None:
    job = read_job(str(write_job(tmp_path, of_groups())))
    assert [(joint.ranks, sorted(joint.parts)) for joint in job.collectives] == [((0, 1), [0, 1]), ((2, 3), [2, 3])]


def shifted(rank: Rank, steps: int) -> Rank:
    """The trace of a rank whose first steps are missing."""
    filler = [Step(-1000 + k, -999 + k, [(0, 0.5)]) for k in range(steps)]
    return replace(rank, steps=[*filler, *rank.steps])


OTHER = lockstep_job(GRADIENTS, [1000, 600], 1.0, 1e-3)
NO_REDUCE = [replace(rank, steps=[replace(step, buckets=[]) for step in rank.steps]) for rank in JOB]


@each_row(
    ("ranks", "rule"),
    [
        ([JOB[0], JOB[2]], "a folder must have the traces of all 3 ranks, got 2 without rank 1: "),
        ([JOB[0], JOB[1], replace(JOB[2], world_size=4)], "traces must be of one job, got world_size 3 in "),
        ([JOB[0], JOB[1], replace(JOB[2], kind="nccl")], "traces must be of one job, got on_gpu False in "),
        ([JOB[0], JOB[1], OTHER[2]], "traces must be of one job: in step 3 "),
        (NO_REDUCE, "its steps have no collectives, which needs a process group"),
        (lockstep_job(GRADIENTS[:1], [], 1.0, 1.0), "must be of a distributed job, got a world_size of 1"),
        ([*JOB[:2], replace(JOB[2], clock_ms=6e4)], "traces must be of one run on clocks that agree (NTP): the same"),
        ([*JOB[:2], replace(JOB[2], more={"baseTimeNanoseconds": 10**18})], "traces must be of one run on clocks"),
    ],
)  # fmt: skip
def test_traces_of_other_jobs_are_refused(ranks: list[Rank], rule: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as error:
        read_job(str(write_job(tmp_path, ranks)))
    assert rule in str(error.value)


def test_a_folder_has_one_trace_of_a_rank(tmp_path: Path) -> None:
    write_trace(write_job(tmp_path, JOB) / "again.json.gz", JOB[1].trace())
    with pytest.raises(TraceError, match="a folder must have one trace of a rank, with repeat=1, got two of 1: "):
        read_job(str(tmp_path))


def test_other_steps_are_named(tmp_path: Path) -> None:
    write_job(tmp_path, JOB[:2])
    later = JOB[2].trace()
    for each in later["traceEvents"]:
        each["name"] = each["name"].replace("ProfilerStep#", "ProfilerStep#9")
    write_trace(tmp_path / "rank2.json", later)
    with pytest.raises(TraceError, match=r"of the same steps, .*rank0.* has 3 to 5, .*rank2.json has 93 to 95"):
        read_job(str(tmp_path))


def test_an_empty_folder_and_a_broken_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"must have traces of the profiler \(\*\.json, \*\.json\.gz\), got none"):
        read_job(str(tmp_path))
    (write_job(tmp_path, JOB) / "rank1.pt.trace.json").write_text('{"traceEvents": [')
    with pytest.raises(TraceError, match=r"rank1\.pt\.trace\.json: the file is cut off"):
        read_job(str(tmp_path))
