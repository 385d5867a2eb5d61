"""Global random streams other than torch's, from which code of the user's may draw."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def seeded_beside(seed: int) -> Iterator[None]:
    """Seed the global streams of Python and NumPy inside of the block, and restore them afterwards."""
    ours, numpys = random.getstate(), np.random.get_state()  # the one that the user's code draws from
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)
