"""What is measured of a real cluster."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dsgd.cluster import Cluster
from dsgd.engines.dist.calibration.measure import MeasuredLink, fit_jitter, measure_link
from dsgd.engines.sim.node import Processor

PATIENCE_S = 60
DRAWS = 20_000


def drawn(cv: float, distribution: str, count: int = DRAWS) -> list[float]:
    """Gradient times as the simulator draws them."""
    cluster = Cluster(gradient_s=0.5, bandwidth=1e9, latency_s=0.0, jitter=cv, jitter_distribution=distribution)
    processor = Processor(cluster, 0, seed=7)
    return [processor.finish(0.0) for _ in range(count)]


def pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a real TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname(), PATIENCE_S)
        return near, server.accept()[0]


@pytest.mark.parametrize(("distribution", "cv"), [("gamma", 0.1), ("lognormal", 0.5)])
def test_what_the_simulator_draws_is_found_again(cv: float, distribution: str) -> None:
    """20,000 draws give the mean to cv / 141 and the cv of even the heavier tail to 3 %; four times that is allowed."""
    times = drawn(cv, distribution)
    found = fit_jitter(times)
    assert found.mean_s == pytest.approx(0.5, rel=4 * cv / math.sqrt(DRAWS))
    assert found.cv == pytest.approx(cv, rel=0.12)
    assert found.distribution == distribution
    assert found.samples == DRAWS
    assert found.pauses <= DRAWS * 1e-4


def test_a_rare_pause_counts_for_the_mean_but_not_for_the_scatter() -> None:
    times = drawn(0.05, "gamma", 200)
    paused = [*times, 20.0]
    found = fit_jitter(paused)
    assert found.mean_s == pytest.approx(np.mean(paused), rel=1e-12)
    assert found.pauses == 1
    assert (found.cv, found.distribution) == (fit_jitter(times).cv, fit_jitter(times).distribution)


def test_what_is_not_rare_belongs_to_the_scatter() -> None:
    times = [*drawn(0.05, "gamma", 90), *[5.0] * 10]
    found = fit_jitter(times)
    assert found.pauses == 0
    assert found.cv == pytest.approx(np.std(times, ddof=1) / np.mean(times), rel=1e-12)


def test_times_that_are_none_are_refused() -> None:
    for times in ([], [0.1, 0.0], [0.1, -1.0], [0.1, math.nan], [math.inf]):
        with pytest.raises(ValueError, match=r"^gradient times must be positive numbers and at least one, got "):
            fit_jitter(times)


def test_both_ends_of_a_link_get_the_same_numbers() -> None:
    near, far = pair()
    with near, far, ThreadPoolExecutor(1) as pool:
        other = pool.submit(measure_link, far, False)
        link = measure_link(near, True, seconds=0.05)
        assert other.result(PATIENCE_S) == link
        assert 0 < link.latency_s < math.inf
        assert 0 < link.bytes_per_s < math.inf
        assert 0 < link.duplex_bytes_per_s < math.inf
        near.sendall(b"still connected")
        assert far.recv(100) == b"still connected", "nothing is left in the stream"


def measured(monkeypatch: pytest.MonkeyPatch, medians: Iterable[float]) -> MeasuredLink:
    """Measure a link on a machine where the median of the trips, and of larger and smaller transfers, are these."""
    of = iter(medians)
    monkeypatch.setattr(
        "dsgd.engines.dist.calibration.measure.statistics.median", lambda times: (list(times), next(of))[1]
    )
    near, far = pair()
    with near, far, ThreadPoolExecutor(1) as pool:
        other = pool.submit(measure_link, far, False)
        try:
            link = measure_link(near, True, seconds=0.001)
            assert other.result(PATIENCE_S) == link
            return link
        finally:
            near.close()


def test_a_link_is_tried_again_with_more_time_where_a_smaller_transfer_took_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    larger, smaller, twice = 2.0, 1.0, [1.0, 2.0, 1.0, 2.0]
    link = measured(monkeypatch, [0.5, *twice, *[larger, smaller] * 3])
    assert (link.latency_s, 0 < link.bytes_per_s < math.inf) == (0.25, True)


def test_a_link_whose_smaller_transfers_always_take_longer_has_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        RuntimeError, match=r"^link: \d+ bytes took 1 s and \d+ 2 s, 6 times likewise; give it more time$"
    ):
        measured(monkeypatch, [0.5, *[1.0, 2.0] * 6])


@pytest.mark.parametrize("initiator", [True, False])
def test_an_end_that_goes_away_is_an_error_at_once(initiator: bool) -> None:
    near, far = pair()
    with near, ThreadPoolExecutor(1) as pool:
        measuring = pool.submit(measure_link, near, initiator)
        far.close()
        with pytest.raises(ConnectionError):
            measuring.result(PATIENCE_S)
