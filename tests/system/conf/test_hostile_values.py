"""Whatever stands for a value, a configuration is checked in no time: accepted, or refused in one line with its key."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dsgd.runner.configuration import configure
from dsgd.runner.values import ConfigError
from tests.support.simulate import values_of

HUGE = 10**400
VALUES = (0, -1, 0.5, 1e308, -1e308, 1e-308, float("inf"), float("-inf"), float("nan"), 2**63, 10**18, HUGE, -HUGE)
VALUES += ("", "x" * 5000, "\0", "a\nb", "\udcff", None, True, [], {})
VALUES += ([HUGE], [1e308], [float("nan")], {"x": HUGE}, {0: 1e308})
NESTED: Any = 1
for _ in range(500):
    NESTED = [NESTED]
CHOICES = [
    ("algo=gossip", "schedule=step", "topology=ring", "data=shapes", "model=resnet20"),
    ("algo=easgd", "schedule=cosine", "topology=torus", "data=digits", "model=mlp"),
    ("algo=downpour", "data=quadratic", "model=vector", "batch_size=1", "budget.steps=5", "cluster=jin2016"),
    ("algo=delayfree", "algo.tau=2", "topology=complete", "data=imagenet-like", "model=resnet18"),
    ("algo=dpsgd", "topology=exponential", "cluster=lian2017_5ms"),
]


def leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))


def test_any_value_for_any_key() -> None:
    """Every key with the first of the choices that have it."""
    tried = set[tuple[str, ...]]()
    for choices in CHOICES:
        whole = values_of(*choices)
        configure(whole)
        new = set(leaves(whole)) - tried
        tried |= new
        assert new
        refused(whole, new)
    assert len(tried) > 130


def refused(whole: dict[str, Any], paths: Iterable[tuple[str, ...]]) -> None:
    for path in paths:
        for value in (*VALUES, NESTED):
            values = copy.deepcopy(whole)
            place = values
            for part in path[:-1]:
                place = place[part]
            place[path[-1]] = value
            try:
                configure(values)
            except ConfigError as error:
                text = str(error)
                assert (len(text.splitlines()), len(text) < 1000) == (1, True), (path, text[:300])
