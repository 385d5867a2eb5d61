from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgd.algorithms.sync import Sync
from dsgd.cluster import Cluster
from dsgd.cluster.compute_trace import Stall
from dsgd.engines.sim.node import Pauses, Processor
from dsgd.streams import stream
from tests.support.timing import timed

DRAWS = 20_000


def cluster(**fields: Any) -> Cluster:
    return Cluster(**{"gradient_s": 0.5, "bandwidth": 1e9, "latency_s": 0.0, **fields})


def durations(processor: Processor, count: int) -> np.ndarray:
    now, found = 0.0, []
    for _ in range(count):
        end = processor.finish(now)
        found.append(end - now)
        now = end
    return np.array(found)


def window(start_s: float, duration_s: float, node: int = 0) -> dict[str, float]:
    return {"node": node, "start_s": start_s, "duration_s": duration_s}


def undisturbed(begin: float, end: float, pauses: list[tuple[float, float]]) -> float:
    """How much of [begin, end] lies outside all pauses."""
    free, until = 0.0, begin
    for pause_begin, pause_end in sorted(pauses):
        free += max(0.0, min(pause_begin, end) - until)
        until = max(until, pause_end)
    return free + max(0.0, end - until)


def test_a_slow_node_takes_its_factor_and_the_others_do_not() -> None:
    slow = cluster(slow_nodes={3: 4.0, 1: 0.5})
    assert [Processor(slow, node, 0).finish(1.0) for node in range(4)] == [1.5, 1.25, 1.5, 3.0]


@pytest.mark.parametrize(
    ("distribution", "cv"),
    [("gamma", 0.1), ("gamma", 1.0), ("lognormal", 0.5), ("normal", 0.3)],
)
def test_jitter_has_mean_one_and_the_given_deviation(distribution: str, cv: float) -> None:
    """Within five standard errors; the standard error of the deviation from the sample's own fourth moment."""
    jittery = cluster(jitter=cv, jitter_distribution=distribution, slow_nodes={0: 2.0})
    factors = durations(Processor(jittery, 0, 0), DRAWS) / (0.5 * 2)
    assert (factors > 0).all()
    assert abs(factors.mean() - 1) <= 5 * cv / DRAWS**0.5
    squares = (factors - 1) ** 2
    assert abs(squares.mean() - cv**2) <= 5 * squares.std() / DRAWS**0.5


def test_normal_jitter_is_normal_as_far_as_time_allows() -> None:
    """P(|T - mean| < deviation) = 0.683, and E[max of 16] = 1.177 with 10 %."""
    factors = durations(Processor(cluster(jitter=0.1, jitter_distribution="normal"), 0, 1), DRAWS) / 0.5
    assert (abs(factors - 1) < 0.1).mean() == pytest.approx(0.6827, abs=5 * 0.0033)
    assert factors.reshape(-1, 16).max(axis=1).mean() == pytest.approx(1.1766, abs=5 * 0.0017)


def test_every_node_has_its_own_stream_and_every_seed_another() -> None:
    jittery = cluster(jitter=0.3)
    first = [durations(Processor(jittery, node, 0), 5).tolist() for node in range(3)]
    assert first == [durations(Processor(jittery, node, 0), 5).tolist() for node in range(3)]
    assert len({tuple(row) for row in first}) == 3
    assert durations(Processor(jittery, 0, 1), 5).tolist() not in first


@pytest.mark.parametrize(("cv", "skew"), [(0.1, 1.0), (0.5, 4.0)])
def test_a_skewed_law_has_the_given_mean_deviation_and_skew(cv: float, skew: float) -> None:
    """Mean and deviation within five standard errors. The skew by quantiles, as a sample's own has no useful error: of
    the log-normal of v^3 + 3 v = skew, shifted and scaled."""
    skewed = cluster(jitter=cv, jitter_distribution="lognormal", jitter_skew=skew)
    factors = durations(Processor(skewed, 0, 0), DRAWS) / 0.5
    assert (factors > 0).all()
    assert abs(factors.mean() - 1) <= 5 * cv / DRAWS**0.5
    squares = (factors - 1) ** 2
    assert abs(squares.mean() - cv**2) <= 5 * squares.std() / DRAWS**0.5
    for share in (0.01, 0.1, 0.5, 0.9, 0.99):
        below = (factors <= quantile(cv, skew, share)).mean()
        assert abs(below - share) <= 5 * (share * (1 - share) / DRAWS) ** 0.5


def quantile(cv: float, skew: float, share: float) -> float:
    """Of a log-normal with mean 1 that is shifted and scaled to this deviation and skew. v by bisection."""
    low, high = 0.0, skew
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if middle**3 + 3 * middle < skew else (low, middle)
    v = (low + high) / 2
    sigma = np.log1p(v**2) ** 0.5
    return 1 + cv / v * (np.exp(sigma * NormalDist().inv_cdf(share) - sigma**2 / 2) - 1)


def test_a_persistent_factor_is_drawn_once_for_each_node() -> None:
    """Mean 1 and the given deviation over 2,000 nodes, within five standard errors."""
    persistent = cluster(jitter_persistent=0.2)
    nodes = np.array([durations(Processor(persistent, node, 0), 2) for node in range(2000)]) / 0.5
    assert nodes[:, 0] == pytest.approx(nodes[:, 1], rel=1e-12)
    assert abs(nodes[:, 0].mean() - 1) <= 5 * 0.2 / 2000**0.5
    assert nodes[:, 0].std() == pytest.approx(0.2, rel=0.12)


def test_a_slow_phase_lasts_its_memory() -> None:
    """The correlation of gradients that begin t apart is exp(-t / memory) on the scale of the normal; the law of each
    stays the log-normal. Begun every second, with a memory of 4 s: 0.78 after one, 0.29 after five, 0.007 after 20."""
    remembering = cluster(gradient_s=1.0, jitter=0.3, jitter_distribution="lognormal", jitter_memory_s=4.0)
    processor = Processor(remembering, 0, 0)
    factors = np.array([processor.finish(float(t)) - t for t in range(DRAWS)])
    sigma = np.log1p(0.3**2) ** 0.5
    levels = (np.log(factors) + sigma**2 / 2) / sigma
    many = DRAWS / 8  # independent ones that so many correlated ones are worth, about
    assert abs(levels.mean()) <= 5 / many**0.5
    assert levels.std() == pytest.approx(1, abs=5 / (2 * many) ** 0.5)
    for lag in (1, 5, 20):
        assert (levels[lag:] * levels[:-lag]).mean() == pytest.approx(np.exp(-lag / 4), abs=5 / many**0.5)


def trace(folder: Path, seconds: Sequence[Sequence[float]]) -> str:
    """A file of steps 10, 12, 14, ... with the times of each rank."""
    lines = [f"{10 + 2 * k},{rank},{time}" for rank, times in enumerate(seconds) for k, time in enumerate(times)]
    path = folder / "times.csv"
    path.write_text("\n".join(["step,rank,seconds", *lines]) + "\n")
    return str(path)


def test_a_trace_is_replayed_rank_by_rank_and_round_and_round(tmp_path: Path) -> None:
    path = trace(tmp_path, [[1.0, 2.0, 4.0], [8.0, 0.5, 0.25]])
    replayed = cluster(gradient_s=None, compute_trace=path, slow_nodes={1: 2.0}, stalls=[window(0.5, 1.0)])
    first, second = (durations(Processor(replayed, node, 0, 2), 4).tolist() for node in range(2))
    assert first == [2.0, 2.0, 4.0, 1.0]  # of which the first meets a stall
    assert second == [16.0, 1.0, 0.5, 16.0]
    assert replayed.mean_gradient_s == 15.75 / 6


def test_a_trace_of_other_ranks_is_drawn_by_the_seed(tmp_path: Path) -> None:
    """Fewer nodes are different ranks, in step; more take all equally often, then from another step on."""
    times = [[rank + step / 64 for step in range(64)] for rank in range(1, 5)]
    replayed = cluster(gradient_s=None, compute_trace=trace(tmp_path, times))

    def of_nodes(nodes: int, seed: int) -> list[list[float]]:
        return [durations(Processor(replayed, node, seed, nodes), 64).tolist() for node in range(nodes)]

    for seed in range(3):
        few = of_nodes(3, seed)
        assert all(row in times for row in few)
        assert len({row[0] for row in few}) == 3
        many = of_nodes(8, seed)
        assert many == of_nodes(8, seed)
        assert sorted(many[:4]) == times
        shifts = [row.index(min(row)) for row in many[4:]]
        assert sorted(row[shift:] + row[:shift] for row, shift in zip(many[4:], shifts, strict=True)) == times
        assert len(set(shifts)) > 1
    assert of_nodes(3, 0) != of_nodes(3, 1)


def test_a_pause_holds_up_its_own_node_alone() -> None:
    stalls = [window(0.0, 2.0, node=1)]
    assert [Processor(cluster(stalls=stalls), node, 0).finish(0.0) for node in range(3)] == [0.5, 2.5, 0.5]


def test_a_pause_without_end_takes_a_node_out_for_good() -> None:
    processor = Processor(cluster(stalls=[window(1.0, float("inf"))]), 0, 0)
    assert processor.finish(0.0) == 0.5
    assert processor.finish(0.75) == float("inf")


@given(
    st.lists(st.tuples(st.integers(0, 320), st.integers(1, 80)), max_size=5),
    st.lists(st.tuples(st.integers(0, 48), st.integers(1, 64)), min_size=1, max_size=8),
)
def test_pauses_extend_work_by_exactly_the_time_they_cover(
    windows: list[tuple[int, int]], work: list[tuple[int, int]]
) -> None:
    """In sixteenths of a second, which floating-point numbers add exactly."""
    pauses = [(start / 16, (start + duration) / 16) for start, duration in windows]
    stalls = [window(begin, end - begin) for begin, end in pauses]
    now = 0.0
    processor = Processor(cluster(stalls=stalls), 0, 0)
    for wait, sixteenths in work:
        processor.mean_s = sixteenths / 16
        begin = now + wait / 16
        end = processor.finish(begin)
        assert undisturbed(begin, end, pauses) == sixteenths / 16
        # it ends with the work, not with a pause that follows
        assert undisturbed(begin, end - 1 / 32, pauses) == sixteenths / 16 - 1 / 32
        now = end


def test_random_pauses_have_exponential_gaps_and_lengths() -> None:
    """Gaps of mean 3 and lengths of mean 2: mean and deviation within five standard errors; every node its own."""
    entry = {"every_s": 3.0, "duration_s": 2.0}
    pauses = Pauses(Stall.from_entry(entry), stream("stall", 0, 0, 0))
    spans, now = [], 0.0
    for _ in range(5000):
        spans.append(pauses.after(now))
        now = spans[-1][1]
    begins, ends = map(np.array, zip(*spans, strict=True))
    for lengths, mean in ((ends - begins, 2.0), (begins[1:] - ends[:-1], 3.0)):
        assert (lengths > 0).all()
        assert abs(lengths.mean() - mean) <= 5 * mean / 5000**0.5
        assert lengths.std() == pytest.approx(mean, rel=0.1)
    of_nodes = [Processor(cluster(stalls=[entry]), node, 0) for node in range(3)]
    assert len({tuple(durations(processor, 50)) for processor in of_nodes}) == 3


def test_a_run_with_a_pause_ends_later_by_what_it_took() -> None:
    """4 steps of half a second, away from 0.7 to 1.7 s; the pause is no idle time of the algorithm's making."""
    found = timed(Sync(), cluster(stalls=[window(0.7, 1.0)]), nodes=1, steps=4)
    assert found.time_s == pytest.approx(3.0, rel=1e-15)
    assert found.summary()["idle_fraction_max"] == pytest.approx(0.0, abs=1e-15)
