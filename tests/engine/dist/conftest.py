from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.command import imported
from tests.support.prefork import Prefork


@pytest.fixture(scope="session")
def prefork_server() -> Prefork:
    """A server that has imported everything and forks a process for every run."""
    return imported()


@pytest.fixture
def prefork(prefork_server: Prefork) -> Iterator[Prefork]:
    """The server; the runs that a test leaves are killed."""
    yield prefork_server
    prefork_server.end()
