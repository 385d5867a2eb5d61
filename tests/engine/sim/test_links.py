"""The network as it is: slices, limits of connections, start-ups, up and down apart, and a link for each pair."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.algorithms.dpsgd import DPSGD
from dsgd.algorithms.sync import Sync
from dsgd.cluster import Cluster
from dsgd.engines.sim.routes import Connection
from dsgd.topology import OnePeerExponential
from tests.engine.sim.conftest import Close
from tests.support.timing import step_times, timed

few = settings(max_examples=10)
WHOLE = Sync(overlap=False)
PAIR = DPSGD(OnePeerExponential().build(2, 0))


def both(close: Close, cluster: Cluster, p: int, algo: Any = WHOLE, steps: int = 3) -> float:
    """The time of so many steps: the same by messages and by the formula."""
    formula = timed(algo, dataclasses.replace(cluster, collective_messages=False), p, steps)
    messages = timed(algo, dataclasses.replace(cluster, collective_messages=True), p, steps)
    close(messages.time_s, formula.time_s)
    sent = formula.machine.network.bytes_sent(math.inf)
    assert messages.machine.network.bytes_sent(math.inf) == pytest.approx(sent, rel=1e-9)
    return formula.time_s


@st.composite
def clusters(draw: st.DrawFn, **fields: Any) -> Cluster:
    """With vectors that up to 10 nodes cut in whole numbers, each of these in up to 12 slices."""
    return Cluster(
        **{
            "gradient_s": draw(st.floats(1e-3, 0.1)),
            "bandwidth": draw(st.floats(1e6, 1e10)),
            "latency_s": draw(st.one_of(st.just(0.0), st.floats(1e-6, 0.1))),
            "message_bytes": 8.0 * 2520 * 4 * 60 * draw(st.integers(1, 20)),
            **fields,
        }
    )


@pytest.mark.parametrize("name", ["ring", "halving_doubling", "chain"])
@few
@given(data=st.data(), slices=st.sampled_from([1, 2, 3, 5, 12]))
def test_slices_take_what_the_formula_says(close: Close, name: str, data: st.DataObject, slices: int) -> None:
    """And never longer than whole parts; with latency alone no shorter."""
    p = data.draw(st.integers(2, 10) if name != "halving_doubling" else st.sampled_from([2, 4, 8]))
    plain = data.draw(clusters(collective=name))
    assert plain.message_bytes is not None
    cluster = dataclasses.replace(plain, slice_bytes=plain.message_bytes / p / slices)
    sliced_s = both(close, cluster, p)
    assert sliced_s <= timed(WHOLE, plain, p, 3).time_s * (1 + 1e-12)
    both(close, cluster, p, Sync())


def test_a_sliced_ring_hides_latency(close: Close) -> None:
    """(R - 1) max(n s, a + s) + n s + a with R = 2 (p - 1): one latency in all where a part takes longer than that."""
    p, a, part_s = 8, 1e-3, 0.01
    cluster = Cluster(0.0, 1e9, a, message_bytes=p * part_s * 1e9 / 8, collective="ring")
    for slices, expected in ((1, 14 * (part_s + a)), (5, 14 * part_s + a), (10, 14 * part_s + a)):
        sliced = dataclasses.replace(cluster, slice_bytes=part_s * 1e9 / 8 / slices)
        close(both(close, sliced, p, steps=1), expected)
    slow = dataclasses.replace(cluster, latency_s=0.1, slice_bytes=part_s * 1e9 / 8 / 10)
    close(both(close, slow, p, steps=1), 13 * (0.1 + part_s / 10) + part_s + 0.1)


@few
@given(data=st.data())
def test_limits_of_a_connection_hold_in_messages_and_formulas(close: Close, data: st.DataObject) -> None:
    """Window, limit and streams, up and down apart: W / (2 a + W / B) for each stream, B the slower port."""
    name = data.draw(st.sampled_from(["ring", "halving_doubling", "tree", "chain", "star"]))
    cluster = data.draw(
        clusters(
            collective=name,
            receive_bandwidth=data.draw(st.one_of(st.none(), st.floats(1e6, 1e10))),
            window_bytes=data.draw(st.one_of(st.none(), st.floats(1500, 1e7))),
            connection_bandwidth=data.draw(st.one_of(st.none(), st.floats(1e6, 1e10))),
            streams=data.draw(st.integers(1, 8)),
            protocol_efficiency=data.draw(st.floats(0.5, 1)),
            slice_bytes=data.draw(st.sampled_from([None, 1e5])) if name in ("ring", "chain") else None,
        )
    )
    both(close, cluster, data.draw(st.sampled_from([2, 4, 8])))


def test_a_window_goes_once_a_round_trip(close: Close) -> None:
    """One vector from each node to its neighbour: a + N (2 a + W / B) / W, the ports free for others meanwhile."""
    n, a, window = 1e7, 0.05, 2.5e6
    cluster = Cluster(0.0, 1e10, a, message_bytes=n, window_bytes=window)
    turn_s = 2 * a + window * 8 / 1e10
    close(timed(PAIR, cluster, 2, 3).time_s, 3 * (a + n / window * turn_s))
    many = dataclasses.replace(cluster, streams=80)
    close(timed(PAIR, many, 2, 3).time_s, 3 * (a + n * 8 / 1e10))


def test_start_ups_are_paid_once_a_collective_and_once_a_bucket(close: Close) -> None:
    """max(t / 3 + S + c (s + T), t + s + T) in c buckets after the forward pass; S + s + T as a whole."""
    p, a, n, startup_s, bucket_s = 4, 1e-3, 1.28e6, 0.5, 0.02
    cluster = Cluster(
        0.3, 1e9, a, message_bytes=n, collective="ring", collective_startup_s=startup_s, bucket_startup_s=bucket_s
    )
    whole_s = 6 * (a + n / p * 8 / 1e9)
    close(both(close, cluster, p, WHOLE, 1), 0.3 + startup_s + bucket_s + whole_s)
    for count in (1, 4, 10):
        cut = dataclasses.replace(cluster, bucket_bytes=n / count)
        part_s = bucket_s + 6 * (a + n / count / p * 8 / 1e9)
        first_s = 0.1 + 0.2 / count
        close(both(close, cut, p, Sync(), 1), max(first_s + startup_s + count * part_s, 0.3 + part_s))
    assert timed(Sync(), cluster, 1, 1).time_s == 0.3  # alone there is nothing to start


def test_what_a_home_receives_does_not_wait_for_what_it_sends(close: Close) -> None:
    """Everybody's vector takes N / up; to a node that receives slowly N / down."""
    n = 1e6
    for up, down in ((1e6, 1e7), (1e7, 1e6)):
        cluster = Cluster(0.0, up, 0.01, receive_bandwidth=down, message_bytes=n)
        close(timed(PAIR, cluster, 2, 2).time_s, 2 * (0.01 + n * 8 / 1e6))


@st.composite
def regions(draw: st.DrawFn) -> tuple[dict[str, Any], int]:
    k = draw(st.integers(2, 4))
    nodes = draw(st.lists(st.integers(1, 3), min_size=k, max_size=k))

    def matrix(values: st.SearchStrategy[float]) -> list[list[float | None]]:
        return [[None if i == j else draw(values) for j in range(k)] for i in range(k)]

    latency_s = matrix(st.sampled_from([0.0, 1e-4, 0.01, 0.2]))
    links = {
        "regions": list("abcd"[:k]),
        "nodes": nodes,
        "latency_s": latency_s,
        "bandwidth": matrix(st.floats(1e6, 1e9)),
    }
    return links, sum(nodes)


@few
@given(data=st.data(), given_links=regions(), slices=st.sampled_from([None, 1, 3]))
def test_a_ring_over_links_takes_what_its_recurrence_says(
    close: Close, data: st.DataObject, given_links: tuple[dict[str, Any], int], slices: int | None
) -> None:
    links, p = given_links
    n = 8.0 * 60 * p * data.draw(st.integers(1, 1000))
    cluster = data.draw(
        clusters(
            collective="ring",
            message_bytes=n,
            links=links,
            wan_bandwidth=data.draw(st.one_of(st.none(), st.floats(1e6, 1e9))),
            window_bytes=data.draw(st.one_of(st.none(), st.floats(1500, 1e6))),
            slice_bytes=None if slices is None else max(64.0, n / p / slices),
        )
    )
    both(close, cluster, p)


def test_a_ring_passes_the_regions_of_one_network_in_the_same_order_however_they_are_listed(close: Close) -> None:
    """The way a, b, c, d has 1 Gbit/s, others a tenth. 12 rounds of 1 MB, by formula and by messages."""
    near = ("ab", "bc", "cd", "da")
    for listed in ("abcd", "acbd", "dbca"):
        pairs = [[None if i == j else f"{i}{j}" for j in listed] for i in listed]
        links = {
            "regions": list(listed),
            "nodes": [{"a": 3, "b": 2}.get(region, 1) for region in listed],
            "latency_s": [[pair and 0.001 for pair in row] for row in pairs],
            "bandwidth": [[pair and (1e9 if pair in near else 1e8) for pair in row] for row in pairs],
        }
        cluster = Cluster(0.1, 1e9, 0.001, message_bytes=7e6, links=links, collective="ring")
        close(both(close, cluster, 7, steps=1), 0.1 + 12 * (0.001 + 0.008))


def test_a_message_takes_the_latency_and_rate_of_its_pair(close: Close) -> None:
    """Both ways apart; and a congested link slows nobody else."""
    links = {
        "regions": ["a", "b"],
        "latency_s": [[None, 0.1], [0.3, None]],
        "bandwidth": [[None, 8e6], [2e6, None]],
    }
    cluster = Cluster(0.0, 1e9, 1e-4, message_bytes=1e6, links=links)
    # both wait for the slower of the two
    close(timed(PAIR, cluster, 2, 1).time_s, 0.3 + 4.0)
    slowed = dataclasses.replace(
        cluster,
        congestion=[{"start_s": 1.0, "duration_s": 2.0, "factor": 0.5, "between": ["b", "a"]}],
        collective_messages=True,
        collective="ring",
    )
    times = step_times(PAIR, slowed, 2, 1)
    close(max(map(max, times)), 0.3 + 5.0)


def test_a_link_loses_its_own_messages() -> None:
    """One of two pairs of regions loses messages; those of the others and of a region itself all come."""
    losing = {
        "regions": ["a", "b", "c"],
        "latency_s": [[None, 0.01, 0.01], [None, None, 0.01], [None, None, None]],
        "bandwidth": [[None, 1e8, 1e8], [None, None, 1e8], [None, None, None]],
        "loss": [[None, 0.5, 0], [0, None, 0], [0, 0, None]],
    }
    cluster = Cluster(0.01, 1e9, 1e-4, message_bytes=1e5, links=losing, collective="ring", collective_messages=True)
    summary = timed(WHOLE, cluster, 6, 50).summary()
    # a ring passes from a to b in 10 messages a step, each of which is lost once on average
    assert 350 < summary["messages_resent"] < 650
    assert (
        timed(WHOLE, dataclasses.replace(cluster, links=losing | {"loss": None}), 6, 5).summary().get("messages_resent")
        is None
    )


@few
@given(data=st.data(), loops=st.sampled_from([1, 2, 3]), slices=st.sampled_from([1, 2]))
def test_a_ring_over_chunks_takes_what_the_formula_says(
    close: Close, data: st.DataObject, loops: int, slices: int
) -> None:
    """Over ports, islands and links, with as many rounds in each loop as in the one of a whole ring."""
    p = data.draw(st.sampled_from([2, 4, 6]))
    plain = data.draw(clusters(collective="ring"))
    assert plain.message_bytes is not None
    part = plain.message_bytes / p
    cut = {"chunk_bytes": part / loops, "slice_bytes": part / loops / slices if slices > 1 else None}
    both(close, dataclasses.replace(plain, **cut), p)
    far = {"latency_s": [[None, 0.02], [None, None]], "bandwidth": [[None, 1e9], [5e8, None]]}
    for more in ({"islands": 2, "wan_latency_s": 0.2}, {"links": {"regions": ["a", "b"], **far}}):
        both(close, dataclasses.replace(plain, **cut, **more), p)


def test_each_loop_of_a_ring_pays_its_latencies(close: Close) -> None:
    """2 (p - 1) (a + c / B) for each of N / (p c) loops; with two slices 2 (p - 1) max(c / B, a + c / 2 B)."""
    p, a, c = 4, 0.05, 4e6
    cluster = Cluster(0.0, 1e9, a, message_bytes=8 * p * c, collective="ring", chunk_bytes=c)
    close(both(close, cluster, p, steps=1), 8 * 6 * (a + c * 8 / 1e9))
    sliced_s = both(close, dataclasses.replace(cluster, slice_bytes=c / 2), p, steps=1)
    close(sliced_s, 8 * 6 * max(c * 8 / 1e9, a + c * 4 / 1e9) + c * 4 / 1e9)
    close(both(close, dataclasses.replace(cluster, chunk_bytes=None), p, steps=1), 6 * (a + 8 * c * 8 / 1e9))


def test_a_connection_starts_slowly(close: Close) -> None:
    """W (T - (log2(W / IW) - 1) R) bytes in T, but for the part of W that the first windows bring: after
    n = log2(W / IW) round trips it has sent W - IW. And again after a silence."""
    a, w = 0.05, 1.28e6
    turn_s = 2 * a + w * 8 / 1e12
    steady = Cluster(0.0, 1e12, a, message_bytes=50 * w, window_bytes=w)
    slow = dataclasses.replace(steady, initial_window_bytes=w / 128, collective_messages=True, collective="ring")
    steady_s, slow_s = (timed(PAIR, each, 2, 1).time_s for each in (steady, slow))
    close(steady_s, a + 50 * turn_s)
    first = sum(2 * a + w / 2**k * 8 / 1e12 for k in range(1, 8))
    close(slow_s, a + first + (50 - 127 / 128) * turn_s)
    assert slow_s - steady_s == pytest.approx((7 - 1) * 2 * a, rel=0.01)
    close(timed(PAIR, slow, 2, 3).time_s, slow_s + 2 * steady_s)  # a pause shorter than that is none
    rested = dataclasses.replace(slow, gradient_s=1.0)
    close(timed(WHOLE, rested, 2, 3).time_s, 3 * (1.0 + slow_s + a))  # in two rounds


def test_a_short_message_needs_no_more_than_its_first_windows(close: Close) -> None:
    """Three initial windows: one of them in the first round trip, two in the second; with streams as much in each."""
    a, n = 0.05, 3 * 15_000
    by_messages: Any = {"collective": "ring", "collective_messages": True}
    slow = Cluster(0.0, 1e12, a, message_bytes=n, window_bytes=1e6, initial_window_bytes=15_000.0, **by_messages)
    close(timed(PAIR, slow, 2, 1).time_s, a + 4 * a + n * 8 / 1e12)
    many = dataclasses.replace(slow, streams=8, message_bytes=8 * n)
    assert timed(PAIR, many, 2, 1).time_s == pytest.approx(5 * a, rel=1e-3)


def test_a_connection_is_not_silent_while_the_line_holds_its_bits_back() -> None:
    connection = Connection(math.inf, turns=((120_000.0, 0.1), (240_000.0, 0.1)), pause_s=0.2)
    assert connection.through(0.0, 1e9, 8.0) == (0.0, 8.0)
    assert connection.through(8.0, 1e7, 8.08) == (8.0, 8.08)
    assert connection.through(9.0, 1e7, 9.08) == (9.0, 9.2)


def test_a_slow_start_ends_at_the_window() -> None:
    for window, rule in ((None, "must be at most window_bytes"), (1e6, "collective_messages must be true with")):
        with pytest.raises(ValueError, match=rule):
            Cluster(0.0, 1e9, 0.0, window_bytes=window, initial_window_bytes=15_000.0)
