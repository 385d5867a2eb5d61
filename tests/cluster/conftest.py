from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support import network as namespaces
from tests.support import slurm as workload
from tests.support.network import Network
from tests.support.slurm import Slurm


@pytest.fixture
def network() -> Iterator[Callable[..., Network]]:
    """Makes networks, `network(hosts=4, rate="100mbit")`, which are gone after the test."""
    _need("network", namespaces.available())
    with ExitStack() as made:
        yield lambda **options: made.enter_context(Network(**options))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Of one process of pytest: it is up within two seconds, and clusters side by side do not know of each other."""
    _need("slurm", workload.available())
    with Slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def slurm(cluster: Slurm) -> Iterator[Slurm]:
    """A SLURM cluster on which nothing else runs; nothing of a test is left on it."""
    yield cluster
    cluster.settle()


def _need(what: str, reason: str | None) -> None:
    """Where this machine cannot do it a test is skipped with the reason; with `what` in the list DSGD_REQUIRE it
    fails."""
    if reason is None:
        return
    if what in os.environ.get("DSGD_REQUIRE", "").split(","):
        pytest.fail(f"DSGD_REQUIRE has {what}: {reason}")
    pytest.skip(f"no {what}: {reason}")
