"""The cluster of a job whose traces follow a law is that law; jobs without one are refused with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dsgd.traces.cluster_fit import Burst, ClusterFit, can_hide_s, fit_cluster, fit_links
from dsgd.traces.json_stream import TraceError
from dsgd.traces.traced_job import read_job
from tests.support.each_row import each_row
from tests.support.kineto_files import Bucket, Rank, Step, lockstep_job, write_job

GRADIENTS = [[100.0, 120.0, 100.0], [130.0, 110.0, 100.0], [90.0, 125.0, 112.0], [100.0, 100.0, 100.0]]
SIZES = [250_000, 1_000_000, 100]
FIXED_MS, BYTE_MS = 0.6, 1e-5


def fit_of(folder: Path, ranks: list[Rank]) -> ClusterFit:
    return fit_cluster(read_job(str(write_job(folder, ranks))))


@pytest.mark.parametrize(("kind", "clocks_ms"), [("gloo", None), ("nccl", [0.0, 300.0, -20.0, 3.0])])
def test_links_and_gradients_are_those_of_the_job(kind: str, clocks_ms: list[float] | None, tmp_path: Path) -> None:
    """With clocks that differ; four ranks of a ring send six messages one after the other."""
    fit = fit_of(tmp_path, lockstep_job(GRADIENTS, SIZES, FIXED_MS, BYTE_MS, kind, clocks_ms=clocks_ms))
    assert fit.links.latency_s(4) == pytest.approx(1e-4, rel=1e-3)
    assert fit.links.bandwidth(4) == pytest.approx(8 * 1.5 / (1e-3 * BYTE_MS), rel=1e-3)
    assert fit.message_bytes == 4 * sum(SIZES)
    assert (fit.all_reduces, fit.buckets) == (3, 1)  # all are called after the gradient
    assert fit.bucket_startup_s == pytest.approx(2e-3 * FIXED_MS, rel=0.01)
    for own, expected in zip(fit.gradient_s, GRADIENTS, strict=True):
        assert [1e3 * value for value in own] == pytest.approx(expected, rel=1e-3)


def test_one_size_has_no_latency(tmp_path: Path) -> None:
    fit = fit_of(tmp_path, lockstep_job(GRADIENTS, [1000], FIXED_MS, BYTE_MS))
    assert fit.links.fixed_s == 0
    assert 1e3 * fit.links.byte_s * 4000 == pytest.approx(FIXED_MS + BYTE_MS * 4000)
    assert any("no latency: all-reduces have one size" in note for note in fit.notes)


def test_the_total_time_of_a_noisy_fit_is_the_measured_one() -> None:
    bursts = [Burst(1 + k % 2, 1e6 * (1 + k % 3), 0.01 * (1 + k % 5), 0.0) for k in range(30)]
    fit = fit_links(bursts)
    assert sum(each.count * fit.fixed_s + each.n_bytes * fit.byte_s for each in bursts) == pytest.approx(
        sum(each.seconds for each in bursts)
    )


def test_all_reduces_that_overlap_are_one_burst(tmp_path: Path) -> None:
    """Two of 4 kB share the link from 50 to 60 ms: 8 kB in 10 ms; they were called at 48 and 49 ms."""
    buckets = [Bucket(1000, 48, 50, 59), Bucket(1000, 49, 51, 60)]
    step = Step(0, 62, [(0, 48)], buckets)
    fit = fit_of(tmp_path, [Rank(rank, 2, [step, replace(step, begin_ms=62, end_ms=124)]) for rank in range(2)])
    assert 8000 * fit.links.byte_s == pytest.approx(0.01)
    assert fit.bucket_startup_s == pytest.approx(0.002, rel=1e-3)  # before the burst


@each_row("hidden_ms, buckets", [(0.0, 1), (35.0, 2), (42.0, 3), (55.0, 4)])
def test_buckets_hide_as_much_as_in_the_trace(hidden_ms: float, buckets: int, tmp_path: Path) -> None:
    """Four all-reduces of 20 ms, one after the other, begin so long before the end of a gradient of 100 ms. Equal
    buckets hide 0, 33, 44 or 50 ms."""
    begins = [100 - hidden_ms + 20 * k for k in range(4)]
    spans = [Bucket(1000, min(begin, 100), begin, begin + 20) for begin in begins]
    fit = fit_of(tmp_path, [Rank(rank, 2, [Step(0, 180 - hidden_ms, [(0, 100)], spans)], "nccl") for rank in range(2)])
    assert (fit.all_reduces, fit.buckets) == (4, buckets)
    assert 1e3 * fit.hidden_s[0] == pytest.approx(hidden_ms)
    assert 1e3 * fit.hidden_s[1] == pytest.approx((1 - 1 / buckets) * 200 / 3)
    assert 1e3 * can_hide_s(buckets, 1.0, 0.08) == pytest.approx((1 - 1 / buckets) * 80)


def test_hosts_are_islands_and_groups_inside_have_links_of_their_own(tmp_path: Path) -> None:
    pairs = [(0, 1), (2, 3)]
    spans = [Bucket(1000, 50, 50, 51, ranks=pairs[0]), Bucket(1000, 50, 50, 51, ranks=pairs[1])]
    spans += [Bucket(1000, 60, 60, 80)]
    step = Step(0, 80, [(0, 60)], spans)
    ranks = [Rank(k, 4, [step], "nccl", host="ab"[k // 2], groups=[range(4), *pairs]) for k in range(4)]
    fit = fit_of(tmp_path, ranks)
    assert fit.hosts == 2
    assert fit.inside is not None
    assert 4000 * fit.inside.byte_s == pytest.approx(1e-3)
    assert 4000 * fit.links.byte_s == pytest.approx(20e-3)
    uneven = [replace(rank, host="aaab"[rank.rank]) for rank in ranks]
    assert fit_of(tmp_path / "uneven", uneven).hosts == 1


def test_one_rank_says_what_it_cannot_know(tmp_path: Path) -> None:
    folder = write_job(tmp_path, lockstep_job(GRADIENTS, SIZES, FIXED_MS, BYTE_MS)[:1])
    fit = fit_cluster(read_job(str(folder / "rank0.pt.trace.json")))
    assert len(fit.gradient_s) == 1
    assert any("one rank of 4: its waiting counts as transfer" in note for note in fit.notes)
    assert any("hosts are not in the traces" in note for note in fit.notes)


LATE = Step(0, 100, [(0, 10), (60, 70)], [Bucket(1000, 70, 70, 80)])


def gathering(rank: Rank) -> Rank:
    """The rank of a job that is sharded: its collectives are all-gathers."""
    trace = rank.trace()
    for each in trace["traceEvents"]:
        each["name"] = each["name"].replace("all_reduce", "_allgather_base").replace("allreduce_", "_allgather_base_")
    return replace(rank, more={"traceEvents": trace["traceEvents"]})


def without_shapes(rank: Rank) -> Rank:
    trace = rank.trace()
    for each in trace["traceEvents"]:
        each["args"].pop("Input Dims", None)
    return replace(rank, more={"traceEvents": trace["traceEvents"]})


PLAIN = lockstep_job(GRADIENTS, SIZES, FIXED_MS, BYTE_MS)


@each_row(
    ("ranks", "rule"),
    [
        ([Rank(rank, 2, [LATE], "nccl") for rank in range(2)], "host-bound: the GPU waits for the host 70% of the"),
        ([gathering(rank) for rank in PLAIN], "only jobs that average gradients by all-reduces over all 4 ranks can"),
        ([without_shapes(rank) for rank in PLAIN], "its all-reduces have no sizes: profile with record_shapes=True"),
        (lockstep_job(GRADIENTS, [0], 1.0, 1.0), "its all-reduces have no"),
    ],
)  # fmt: skip
def test_jobs_that_cannot_be_described_are_refused(ranks: list[Rank], rule: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as error:
        fit_of(tmp_path, ranks)
    assert rule in str(error.value)
