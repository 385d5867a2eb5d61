from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support import network as namespaces
from tests.support import slurm as workload
from tests.support.network import Network
from tests.support.required import need
from tests.support.slurm import Slurm


@pytest.fixture
def network() -> Iterator[Callable[..., Network]]:
    """Makes networks, `network(hosts=4, rate="100mbit")`, which are gone after the test."""
    need("network", namespaces.available())
    with ExitStack() as made:
        yield lambda **options: made.enter_context(Network(**options))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Of one process of pytest: it is up within two seconds, and clusters side by side do not know of each other."""
    need("slurm", workload.available())
    with Slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def slurm(cluster: Slurm) -> Iterator[Slurm]:
    """A SLURM cluster on which nothing else runs; nothing of a test is left on it."""
    yield cluster
    cluster.settle()
