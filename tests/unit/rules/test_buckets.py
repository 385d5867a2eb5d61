from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsgd.engines.rules.step_rules import LEAST_BYTES, MOST_BYTES, bucket_bytes, bucket_count
from tests.support.each_row import each_row


@each_row(
    ("n_bytes", "count"),
    [
        (40, 1),
        (256 << 10, 1),
        ((256 << 10) + 4, 2),
        (1_078_888, 3),  # ResNet-20
        (46_758_048, 3),  # ResNet-18
        (102_228_128, 7),  # ResNet-50
    ],
)
def test_a_gradient_is_cut_in_thirds_but_for_small_and_large_ones(n_bytes: int, count: int) -> None:
    assert bucket_count(n_bytes) == count


@given(st.floats(1e-3, 1e15))
def test_buckets_within_the_limits_cover_the_gradient(n_bytes: float) -> None:
    count, least = bucket_count(n_bytes), bucket_bytes(n_bytes)
    assert LEAST_BYTES <= least <= MOST_BYTES
    assert (count - 1) * least < n_bytes <= count * least
