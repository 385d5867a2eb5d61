"""Text to predict byte by byte: a file, or sentences drawn from a small grammar.

The last `test_share` of the bytes are the test set, the others are for training. Either part is cut into windows of
`context` + 1 bytes, each beginning with the last byte of the one before: a sample is one window, its input the first
`context` bytes, its targets the byte after each. So an epoch predicts every byte once.
"""

from __future__ import annotations

import re
from bisect import bisect
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from dsgd.data.partition import Partition
from dsgd.data.split import Validation
from dsgd.host.files import expanded, regular_file
from dsgd.keys import check_options
from dsgd.models import TokenShape
from dsgd.streams import stream

if TYPE_CHECKING:
    import torch

    from dsgd.data.in_memory import TextWindows

MOST_CONTEXT = 2**16
MOST_BYTES = 2**30  # of text, in memory

# each symbol, and its replacements with weights; a {symbol} in them is replaced too
RULES: dict[str, dict[str, float]] = {
    "sentence": {"{clause}. ": 6, "if {clause}, then {clause}. ": 1, "{clause}, but {clause}.\n": 2},
    "clause": {"{one} {does}": 1, "{many} {do}": 1},
    "one": {"{name}": 1, "{this} {noun}": 2, "{this} {noun} that {does}": 1},
    "many": {"{these} {noun}s": 3, "{these} {noun}s that {do}": 1},
    "does": {"{rest}s": 1, "{act}s {object}": 2, "never {act}s {object}": 1},
    "do": {"{rest}": 1, "{act} {object}": 2, "never {act} {object}": 1},
    "object": {"{one}": 1, "{many}": 1},
    "this": {"the": 3, "a": 2, "this": 1, "every": 1},
    "these": {"the": 3, "these": 1, "two": 1, "seven": 1, "all": 1},
    "name": {"anna": 1, "boris": 1, "clara": 1, "david": 1},
    "noun": {"baker": 1, "cat": 3, "dog": 3, "farmer": 2, "horse": 1, "neighbour": 1, "robot": 2, "singer": 1},
    "act": {"follow": 2, "greet": 1, "help": 1, "like": 3, "remember": 1, "see": 2, "want": 1},
    "rest": {"dream": 1, "sing": 1, "sleep": 2, "wait": 1},
}


@dataclass(frozen=True)
class Text(Validation):
    """Windows of bytes: 256 classes; ASCII text uses the lower half."""

    path: str | None = None  # a file, all bytes of it; None: text by a grammar
    context: int = 64  # bytes of an input
    test_share: float = 0.1  # of the bytes, the last ones
    generated_bytes: int = 200_000  # of the grammar's text, test part included

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(
            self, context=f"in [1, {MOST_CONTEXT}]", test_share="in (0, 1)", generated_bytes=f"in [1, {MOST_BYTES}]"
        )

    @property
    def input_shape(self) -> TokenShape:
        return TokenShape((self.context,))

    @property
    def classes(self) -> int:
        return 256

    def train_samples(self, nodes: int) -> int:
        """Count the windows to train on. Raises ValueError as `check` does of the file."""
        return self.kept((self._size - self._test_bytes - 1) // self.context)

    def load(self, nodes: int, batch_size: int, seed: int, dtype: torch.dtype) -> TextWindows:
        from dsgd.data.in_memory import TextWindows, windows

        self.check(nodes, batch_size)
        # the run's seed only orders the windows
        text = generated_text(self.generated_bytes, stream("text", 0)) if self.path is None else read_text(self.path)
        border = len(text) - self._test_bytes
        train, test = (windows(part, self.context) for part in (text[:border], text[border:]))
        train, test = self.parts(train, test, lambda whole, chosen: whole[chosen], len(train))
        return TextWindows(train, test, Partition(len(train), nodes, batch_size, seed))

    @cached_property
    def _size(self) -> int:
        return self.generated_bytes if self.path is None else len(read_text(self.path))

    @property
    def _test_bytes(self) -> int:
        """Number of bytes of the test set. Raises ValueError unless both parts have a window."""
        size = self._size
        test = round(self.test_share * size)
        longest = min(test, size - test) - 1
        if longest < 1:
            key = "generated_bytes" if self.path is None else "path"
            rule = f"data.{key} must give 2 bytes each for training and test with data.test_share={self.test_share:g}"
            raise ValueError(f"{rule}, got {size} bytes")
        if self.context > longest:
            rule = f"<= {longest} (training and test have {size - test} and {test} bytes)"
            raise ValueError(f"data.context must be {rule}, got {self.context}")
        return test


def read_text(path: str) -> bytes:
    """Return the bytes of a regular file. Raises ValueError that names `data.path`."""
    try:
        with regular_file(expanded(path, "data.path")) as (file, size):
            if size > MOST_BYTES:
                raise ValueError(f"data.path must be a file of at most {MOST_BYTES} bytes, got {size} in {path}")
            return file.read(size)
    except OSError as error:
        raise ValueError(f"data.path must be a readable file, got {path} ({error.strerror})") from None


def generated_text(size: int, rng: np.random.Generator) -> bytes:
    """Return the first `size` bytes, ASCII, of sentences that `rng` draws."""
    written: list[bytes] = []
    length = 0
    while length < size:
        written.append(_sentence(rng).encode("ascii"))
        length += len(written[-1])
    return b"".join(written)[:size]


def _sentence(rng: np.random.Generator) -> str:
    written: list[str] = []
    left = ["{sentence}"]  # parts to be written, last first
    while left:
        part = left.pop()
        if part.startswith("{"):
            weights, choices = _choices(part[1:-1])
            left += choices[bisect(weights, weights[-1] * rng.random())]
        else:
            written.append(part)
    return "".join(written)


@cache
def _choices(symbol: str) -> tuple[list[float], list[list[str]]]:
    """Return the cumulated weights of the replacements of a symbol, and the parts of each, last first."""
    rules = RULES[symbol]
    return list(accumulate(rules.values())), [re.split(r"({\w+})", rule)[::-1] for rule in rules]
