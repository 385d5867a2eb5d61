"""Which cases wait for `make test-long`, and which of them `.ci/run` draws."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any
from zlib import crc32

import pytest

FURTHER = (pytest.mark.long, pytest.mark.further)


def long_but(kept: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a parametrised test: `make test` has those that are kept, `make test-long` the others."""
    return [case if case in kept else pytest.param(case, marks=FURTHER) for case in cases]


def all_long_but(kept: Collection[tuple[Any, ...]], cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return the same for a test of several parameters, of which each case has all values."""
    return [case if case in kept else pytest.param(*case, marks=FURTHER) for case in cases]


def further_but(kept: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a parametrised test, none of which `make test` has: `.ci/run` has those that are kept, and
    draws of the others."""
    return [pytest.param(case, marks=pytest.mark.long if case in kept else FURTHER) for case in cases]


def is_drawn(name: str, draw: str) -> bool:
    """Check that a further case is drawn. draw: one of how many, and what else the choice depends on, as `2:COMMIT`."""
    count, seed = draw.split(":")
    return crc32(f"{seed} {name}".encode()) % int(count) == 0
