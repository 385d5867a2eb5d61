from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.prefork import Stage


@pytest.fixture(scope="session")
def theatre() -> Iterator[Stage]:
    """One process that has imported everything, and forks."""
    stage = Stage()
    yield stage
    stage.close()


@pytest.fixture
def stage(theatre: Stage) -> Iterator[Stage]:
    """On which nothing is left of a test."""
    yield theatre
    theatre.end()
