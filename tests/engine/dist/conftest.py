from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.prefork import Prefork


@pytest.fixture(scope="session")
def prefork_server() -> Iterator[Prefork]:
    """A server that has imported everything and forks a process for every run."""
    prefork = Prefork()
    yield prefork
    prefork.close()


@pytest.fixture
def prefork(prefork_server: Prefork) -> Iterator[Prefork]:
    """The server; the runs that a test leaves are killed."""
    yield prefork_server
    prefork_server.end()
