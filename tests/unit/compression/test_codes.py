from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from dsgd.compression.codes import pack, unpack

DTYPES = (torch.uint8, torch.int32, torch.float32, torch.float64)


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 9)), min_size=1, max_size=5))
def test_parts_of_any_types_come_back_in_any_order(kinds: list[tuple[torch.dtype, int]]) -> None:
    parts = [torch.arange(count).to(dtype) for dtype, count in kinds]
    unpacked = unpack(pack(parts, torch.zeros(1)), kinds)
    for part, (dtype, _), again in zip(parts, kinds, unpacked, strict=True):
        assert again.dtype == dtype
        assert torch.equal(again, part)
