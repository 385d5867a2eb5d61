"""Sums over all workers by a ring: in one order of additions, to the same bits everywhere."""

from __future__ import annotations

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.engines.dist.pairwise import ring
from dsgd.engines.dist.pairwise.ring import SumRing
from dsgd.engines.dist.pairwise.wire import DTYPE_CODES, RING_HEADER, RING_MAGIC
from tests.support.planes import LIMIT_S
from tests.support.rings import in_order, reduce_all, rings, socketpairs, vectors_of

EXAMPLES = 40


@pytest.mark.parametrize(("nodes", "dtype"), [(2, torch.float64), (3, torch.float32), (7, torch.float64)])
def test_the_sum_is_made_in_one_order_of_additions_by_all(nodes: int, dtype: torch.dtype) -> None:
    """Bit for bit, on the same connections, for vectors shorter than the ring and longer than the kernel's buffers."""
    with rings(nodes) as made:
        for length in (0, 1, nodes - 1, nodes, nodes + 1, 1000, 17_501, 300_001, 0, 3_000_001):
            vectors = vectors_of(nodes, length, dtype, seed=length)
            expected = in_order(vectors)
            reduce_all(made, vectors)
            for v in vectors:
                assert np.array_equal(v.numpy(), expected)


@settings(max_examples=EXAMPLES)
@given(data=st.data(), nodes=st.integers(2, 5), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_sums_follow_each_other_whatever_their_lengths(data: st.DataObject, nodes: int, dtype: torch.dtype) -> None:
    """Also with segments of a few bytes, where every number may be cut in two."""
    lengths = data.draw(st.lists(st.integers(0, 3000), min_size=1, max_size=4))
    with pytest.MonkeyPatch.context() as patch:
        segment = data.draw(st.sampled_from([8, 9, 13, 64, 4096]))
        patch.setattr(ring, "SEGMENT_BYTES", segment)
        with rings(nodes) as made:
            for length in lengths:
                vectors = vectors_of(nodes, length, dtype, seed=length)
                expected = in_order(vectors)
                reduce_all(made, vectors)
                assert all(np.array_equal(v.numpy(), expected) for v in vectors)


@settings(max_examples=EXAMPLES)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_a_stream_may_come_in_pieces_of_any_length(data: st.DataObject, dtype: torch.dtype) -> None:
    """A neighbour by hand, which is both of the other's neighbours, sends a byte here and a thousand there."""
    length = data.draw(st.integers(1, 400))
    own, other = vectors_of(2, length, dtype, seed=length)
    expected = in_order([own, other])
    (left, right), (others_left, others_right) = socketpairs(2)
    ours = SumRing(0, 2, left, right, LIMIT_S)
    header = RING_HEADER.pack(RING_MAGIC, DTYPE_CODES[dtype], 0, length)
    half = length // 2
    stream = header + other.numpy()[half:].tobytes() + expected[:half].tobytes()
    with ThreadPoolExecutor(1) as thread, others_left, others_right, contextlib.closing(ours):
        done = thread.submit(ours.all_reduce, own)
        others_right.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while stream:
            count = data.draw(st.sampled_from([1, 3, 7, 24, 1000]))
            others_right.sendall(stream[:count])
            stream = stream[count:]
        done.result(LIMIT_S)
        item = own.itemsize
        sent = others_left.recv(len(header) + length * item, socket.MSG_WAITALL)
    assert np.array_equal(own.numpy(), expected)
    assert sent[: len(header)] == header
    assert sent[-(length - half) * item :] == expected[half:].tobytes()


def test_what_is_no_vector_of_numbers_is_refused() -> None:
    whole, half = torch.ones(4, dtype=torch.int64), torch.ones(4, dtype=torch.float16)
    with rings(2) as made:
        for v in (whole, half, torch.ones(2, 2), torch.ones(8)[::2]):
            with pytest.raises(ValueError, match=r"^v must be a contiguous vector of float32 or float64"):
                made[0].all_reduce(v)
