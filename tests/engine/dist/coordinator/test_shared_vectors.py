"""Vectors that workers hand in alike: one of them sends it, and all snapshots have it."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dsgd.engines.dist.coordinator.shared_vectors import REMEMBERED, SharedVectors
from dsgd.engines.dist.frames import BadFrame


def vector(value: float) -> Tensor:
    return torch.full((3,), value)


def digest(vector: Tensor) -> str:
    return hashlib.blake2b(vector.numpy().data, digest_size=16).hexdigest()


def snapshot(key: str, same: list[str]) -> dict[str, Any]:
    return {"kind": "snapshot", "key": key, "same": same}


def hand_in(shared: SharedVectors, node: int, key: str, vectors: dict[str, Tensor]) -> list[str]:
    """Offer and send a snapshot; return what was sent."""
    wanted = shared.offer(node, key, {name: digest(vector) for name, vector in vectors.items()})
    same = [name for name in vectors if name not in wanted]
    list(shared.receive(node, snapshot(key, same), {name: vectors[name] for name in wanted}))
    return wanted


# what each of three workers hands in: the values of x and m, for each of some keys in order
KEYS = st.lists(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), min_size=3, max_size=3), max_size=5)


@given(KEYS, st.randoms(use_true_random=False))
def test_every_snapshot_is_whole_and_in_order_whatever_the_order_of_messages(
    keys: list[list[tuple[int, int]]], chance: random.Random
) -> None:
    shared = SharedVectors(3)
    contents = {
        (node, f"key{i}"): {"x": vector(key[node][0]), "m": vector(key[node][1])}
        for i, key in enumerate(keys)
        for node in range(3)
    }
    to_come = {node: [key for other, key in contents if other == node] for node in range(3)}
    promised: dict[int, list[str]] = {}  # by node: what it is to send
    sent: list[tuple[str, str, str]] = []
    whole: dict[int, list[str]] = {0: [], 1: [], 2: []}
    kept = []
    while any(to_come.values()):
        node = chance.choice([node for node in to_come if to_come[node]])
        key = to_come[node][0]
        mine = contents[node, key]
        if node not in promised:
            promised[node] = shared.offer(node, key, {name: digest(vector) for name, vector in mine.items()})
            sent += [(key, name, digest(mine[name])) for name in promised[node]]
            continue
        wanted = promised.pop(node)
        to_come[node].pop(0)
        same = [name for name in mine if name not in wanted]
        arrived = {name: mine[name].clone() for name in wanted}
        for other, message, vectors in shared.receive(node, snapshot(key, same), arrived):
            kept.append(vectors)  # as a mark would until all of it has come
            whole[other].append(message["key"])
            assert vectors.keys() == contents[other, message["key"]].keys()
            assert all(torch.equal(vectors[name], contents[other, message["key"]][name]) for name in vectors)
    assert all(whole[node] == [f"key{i}" for i in range(len(keys))] for node in range(3))
    assert len(sent) == len(set(sent))  # no vector twice


def test_a_vector_that_nobody_keeps_is_sent_again() -> None:
    shared = SharedVectors(2)
    assert hand_in(shared, 0, "step:1", {"x": vector(1)}) == ["x"]  # for a mark that had no room
    assert hand_in(shared, 1, "step:1", {"x": vector(1)}) == ["x"]


def test_a_promised_vector_is_held_though_its_mark_is_dropped() -> None:
    shared = SharedVectors(2)
    x = vector(1)
    assert shared.offer(0, "step:1", {"x": digest(x)}) == ["x"]
    assert shared.offer(1, "step:1", {"x": digest(x)}) == []
    list(shared.receive(0, snapshot("step:1", []), {"x": x}))
    del x
    ((node, _, vectors),) = shared.receive(1, snapshot("step:1", ["x"]), {})
    assert node == 1
    assert torch.equal(vectors["x"], vector(1))


def test_what_is_known_is_bounded() -> None:
    shared = SharedVectors(2)
    for step in range(100):
        for node in range(2):
            shared.offer(node, f"step:{step}", {"x": f"{node}"})
    assert len(shared._known) == 2 * REMEMBERED
    assert shared.offer(1, "step:99", {"x": "0"}) == []  # the latest ones


@pytest.mark.parametrize(
    ("same", "names", "key"), [(["x"], [], "step:1"), ([], [], "step:1"), (["m"], ["x"], "step:1"), (["x"], [], "last")]
)
def test_a_snapshot_that_lacks_what_was_wanted_is_refused(same: list[str], names: list[str], key: str) -> None:
    shared = SharedVectors(2)
    shared.offer(0, "step:1", {"x": digest(vector(1))})
    with pytest.raises(BadFrame, match="lacked"):
        list(shared.receive(0, snapshot(key, same), {name: vector(1) for name in names}))
