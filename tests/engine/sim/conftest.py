from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

TOLERANCE = 1e-9

Close = Callable[[float, float], None]


@pytest.fixture(scope="session")
def close() -> Iterator[Close]:
    """Compares a virtual time with its closed form. `pytest -s` shows the largest relative deviation of the session."""
    worst = 0.0

    def compare(found: float, expected: float) -> None:
        nonlocal worst
        deviation = abs(found - expected) / expected
        worst = max(worst, deviation)
        assert deviation <= TOLERANCE, f"{found} instead of {expected}"

    yield compare
    print(f"\nlargest relative deviation from the closed forms: {worst:.2e}")
