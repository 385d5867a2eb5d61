"""Seed random streams by their purpose, so that none depends on what others have drawn.

Code of the user's may draw from the global streams of Python, NumPy and torch. These can be seeded for a while.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from zlib import crc32

import numpy as np


def stream(purpose: str, *numbers: int) -> np.random.Generator:
    """Make a generator from `purpose` and `numbers` (each >= 0: seed, rank, step, ...); one purpose, one arity."""
    return np.random.default_rng([crc32(purpose.encode()), *numbers])


@contextmanager
def seeded_streams(seed: int = 0) -> Iterator[None]:
    """Seed every global stream inside of the block, and restore them afterwards. seed: integer in [0, 2**63)."""
    import torch

    with torch.random.fork_rng(devices=[]), seeded_beside(seed):
        torch.manual_seed(seed)
        yield


@contextmanager
def seeded_beside(seed: int) -> Iterator[None]:
    """Seed the global streams of Python and NumPy inside of the block, and restore them afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def stream_states() -> dict[str, object]:
    """Return the state of every global stream by its name: a draw from a stream changes its state."""
    import torch

    _, keys, position, *more = np.random.get_state()
    return {
        "torch": torch.random.get_rng_state().numpy().tobytes(),
        "NumPy": (np.asarray(keys).tobytes(), position, *more),
        "Python": random.getstate(),
    }
