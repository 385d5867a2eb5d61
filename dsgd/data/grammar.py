"""Write text by a small probabilistic grammar of English sentences: any amount of it, without a file and a licence.

Verbs agree with their subjects, across relative clauses too, so that the next byte depends on more than the last few.
"""

from __future__ import annotations

import re
from bisect import bisect
from itertools import accumulate

import numpy as np

# each symbol, and what may stand for it, with weights; {symbol} is replaced in its turn
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
    left = ["{sentence}"]  # what is to be written, last first
    while left:
        part = left.pop()
        if part in _CHOICES:
            weights, choices = _CHOICES[part]
            left += choices[bisect(weights, weights[-1] * rng.random())]
        else:
            written.append(part)
    return "".join(written)


def _choices(rules: dict[str, float]) -> tuple[list[float], list[list[str]]]:
    """Return the cumulated weights of what may stand for a symbol, and the parts of each, last first."""
    return list(accumulate(rules.values())), [re.split(r"({\w+})", rule)[::-1] for rule in rules]


_CHOICES = {f"{{{symbol}}}": _choices(rules) for symbol, rules in RULES.items()}
