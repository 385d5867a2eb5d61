"""Stacks side by side: where there are several, a core does more on one of its own than on a share of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch


class Lanes:
    """count: calls that go on at once, each in a thread that computes with its share of this thread's cores. A single
    lane is this thread itself.

    share: of the cores. This thread had better keep to it, too, when it adds vectors: to wake the threads that it has
    not used for a while takes longer than the sum."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.share = torch.get_num_threads() // count
        self._pool: ThreadPoolExecutor | None = None
        if count > 1:
            self._pool = ThreadPoolExecutor(count, "lane", torch.set_num_threads, (self.share,))

    def each(self, function: Callable[..., None], rows: Iterable[tuple[Any, ...]]) -> None:
        """Call the function with the arguments of every row. Raises what it raises."""
        if self._pool is None:
            for row in rows:
                function(*row)
        else:
            for _ in self._pool.map(lambda row: function(*row), rows):
                pass
