"""Who sends what to whom in a collective, without a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest

from dsgd.cluster import CENTRAL
from dsgd.engines.sim.collective_steps import STEPS, Step
from dsgd.engines.sim.collectives import COSTS, bytes_of_nodes

N = 5040.0  # divided by all numbers up to 10
NODES = [2, 3, 4, 5, 6, 7, 8, 13, 19]

each_collective = pytest.mark.parametrize("name", list(STEPS))


def steps_of(name: str, p: int, n_bytes: float = N, item_bytes: int = 4) -> list[list[Step]]:
    return [list(STEPS[name](p, node, n_bytes, item_bytes)) for node in range(p + (name in CENTRAL))]


@each_collective
def test_each_message_is_waited_for_and_bytes_are_those_of_the_cost_model(name: str) -> None:
    for p in NODES:
        n = 4.0 * p * N  # p divides it, or its segments in a ring would differ
        sent, waited, counted = Counter(), Counter(), []
        for node, steps in enumerate(steps_of(name, p, n)):
            sent.update((node, target) for step in steps for target in step.targets)
            waited.update((source, node) for step in steps for source in step.sources)
            counted.append(sum(step.n_bytes * len(step.targets) for step in steps))
        assert sent == waited, p
        assert all(sender != receiver for sender, receiver in sent)
        assert counted == pytest.approx(bytes_of_nodes(name, p, n), rel=1e-12)


@each_collective
@pytest.mark.parametrize("backwards", [False, True])
def test_in_the_end_every_worker_has_heard_from_everybody(name: str, backwards: bool) -> None:
    """In any order in which nodes may get their turn; nobody waits for ever."""
    for p in NODES:
        steps = steps_of(name, p)
        known = [{node} for node in range(len(steps))]
        wires: dict[tuple[int, int], list[set[int]]] = {}

        def way(node: int, steps: list = steps, known: list[set[int]] = known, wires: dict = wires) -> Iterator[None]:
            for step in steps[node]:
                for target in step.targets:
                    wires.setdefault((node, target), []).append(set(known[node]))
                for source in step.sources:
                    while not wires.get((source, node)):
                        yield
                    known[node] |= wires[source, node].pop(0)

        ways = {node: way(node) for node in range(len(steps))[:: -1 if backwards else 1]}
        for _ in range(20 * p * p):
            ways = {node: way for node, way in ways.items() if next(way, "through") is None}
        assert not ways, p
        assert all(set(range(p)) <= heard for heard in known[:p])


def test_every_collective_has_a_cost_and_steps() -> None:
    assert COSTS.keys() == STEPS.keys()


@pytest.mark.parametrize(("n_bytes", "item_bytes"), [(40.0, 4), (44.0, 4), (48.0, 8), (4.0, 4), (41.5, 4), (0.5, 4)])
def test_segments_of_a_ring_are_whole_numbers_of_items(n_bytes: float, item_bytes: int) -> None:
    """Those that the real ring makes of a vector; bytes that are no whole number go with the last one."""
    items = int(n_bytes // item_bytes)
    for p in NODES:
        cuts = list(pairwise(items * k // p for k in range(p + 1)))
        expected: list[float] = [(end - begin) * item_bytes for begin, end in cuts]
        expected[-1] += n_bytes - items * item_bytes
        for node, steps in enumerate(steps_of("ring", p, n_bytes, item_bytes)):
            assert [step.n_bytes for step in steps] == [expected[(node - j) % p] for j in range(2 * (p - 1))]
            assert sum(step.n_bytes for step in steps[:p]) == n_bytes
