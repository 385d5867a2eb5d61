"""Into how many buckets a gradient is cut, each all-reduced as soon as the backward pass has finished it."""

from __future__ import annotations

from math import ceil

# a third of the gradient, within limits: small buckets have more overhead, large ones less overlap
BUCKETS, LEAST_BYTES, MOST_BYTES = 3, 256 << 10, 16 << 20


def bucket_bytes(n_bytes: float) -> int:
    """Return how many bytes a bucket of a gradient of n_bytes has at the least, the last one excepted."""
    return min(MOST_BYTES, max(LEAST_BYTES, ceil(n_bytes / BUCKETS)))


def bucket_count(n_bytes: float) -> int:
    """Return how many buckets that makes where a gradient can be cut anywhere; real ones are of whole parameters."""
    return ceil(n_bytes / bucket_bytes(n_bytes))
