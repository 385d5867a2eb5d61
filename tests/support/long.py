"""Which cases wait for `make test-long`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def long_but(kept: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Return the cases of a parametrised test: `make test` has those that are kept, `make test-long` the others."""
    return [case if case in kept else pytest.param(case, marks=pytest.mark.long) for case in cases]


def all_long_but(kept: Collection[tuple[Any, ...]], cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return the same for a test of several parameters, of which each case has all values."""
    return [case if case in kept else pytest.param(*case, marks=pytest.mark.long) for case in cases]
