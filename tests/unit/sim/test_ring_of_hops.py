"""In which order a ring passes regions: the fastest, in whatever order they are listed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.engines.sim.ring_of_hops import Hop, RingOfHops, ring_of_hops_s

INSIDE = Hop(1e-4, 1e9, 1e9)


def ring_over(
    sizes: Sequence[int], ways: Sequence[Sequence[Hop]], listed: Sequence[int], **parts: float | None
) -> RingOfHops:
    """A ring over regions of such sizes, listed in this order. Ranks are tens of the region and a number in it."""
    regions = [[10 * region + k for k in range(sizes[region])] for region in listed]
    return RingOfHops(regions, lambda a, b: INSIDE if a // 10 == b // 10 else ways[a // 10][b // 10], **parts)


def random_ways(k: int, seed: int) -> list[list[Hop]]:
    draw = Random(seed)
    return [[Hop(draw.choice((1e-3, 0.05, 0.2)), 1e9, 10 ** draw.uniform(6, 9)) for _ in range(k)] for _ in range(k)]


@settings(max_examples=20)
@given(k=st.integers(3, 5), seed=st.integers(0, 999), n_bytes=st.sampled_from([1e3, 1e7]), slices=st.booleans())
def test_the_order_of_the_list_changes_nothing_and_none_is_faster(
    k: int, seed: int, n_bytes: float, slices: bool
) -> None:
    ways, sizes = random_ways(k, seed), [1 + (seed + i) % 3 for i in range(k)]
    p = sum(sizes)
    part = n_bytes / p
    ring = ring_over(sizes, ways, range(k), **({"slice_bytes": part / 4} if slices else {}))
    orders = [[rank for region in order for rank in ring.regions[region]] for order in permutations(range(k))]
    hops = [[ring.hop(a, b) for a, b in pairwise([*order, order[0]])] for order in orders]
    count = 4 if slices else 1
    fastest_s = min(ring_of_hops_s(hops, part / count, count, 2 * (p - 1)))
    for listed in permutations(range(k)):
        again = ring_over(sizes, ways, listed, slice_bytes=ring.slice_bytes)
        assert again.seconds(n_bytes) == pytest.approx(fastest_s, rel=1e-8)
        assert sorted(again.order(n_bytes)) == sorted(orders[0])


@pytest.mark.parametrize(("k", "kept"), [(6, False), (8, False), (9, True)])
def test_of_many_regions_the_ring_of_fast_links_is_taken(k: int, kept: bool) -> None:
    """Every other link has a tenth of its rate. More than eight regions stay as they are listed."""
    planted = Random(k).sample(range(k), k)
    ways = [[Hop(0.01, 1e9, 1e7)] * k for _ in range(k)]
    for here, there in pairwise([*planted, planted[0]]):
        ways[here][there] = Hop(0.01, 1e9, 1e8)
    ring, n_bytes = ring_over([1] * k, ways, range(k)), k * 1e8
    assert ring.seconds(n_bytes) == pytest.approx(2 * (k - 1) * (0.01 + (10 if kept else 1)), rel=1e-3)
    order = [rank // 10 for rank in ring.order(n_bytes)]
    first = planted.index(0)
    assert order == ([*range(k)] if kept else planted[first:] + planted[:first])


def test_of_equal_orders_the_one_of_the_list_stays() -> None:
    ways = [[Hop(0.01, 1e9, 1e7)] * 4 for _ in range(4)]
    assert ring_over([2, 1, 1, 1], ways, range(4)).order(1e6) == [0, 1, 10, 20, 30]


def test_the_order_may_depend_on_the_size() -> None:
    """A short vector goes where latency is short, a long one where bandwidth is."""
    near, wide = Hop(1e-3, 1e9, 1e6), Hop(0.2, 1e9, 1e9)
    ways = [[near if (there - here) % 4 == 1 else wide for there in range(4)] for here in range(4)]
    ring = ring_over([1] * 4, ways, range(4))
    assert ring.order(4e2) == [0, 10, 20, 30]
    assert ring.order(4e8) == [0, 20, 10, 30] or ring.order(4e8) == [0, 30, 20, 10]
