from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.cluster.network import Network, available


@pytest.fixture
def network() -> Iterator[Callable[..., Network]]:
    """Makes networks, `network(hosts=4, rate="100mbit")`, which are gone after the test.

    Where this machine cannot make one the test is skipped with the reason; with `network` in the list DSGD_REQUIRE it
    fails."""
    reason = available()
    if reason is not None:
        if "network" in os.environ.get("DSGD_REQUIRE", "").split(","):
            pytest.fail(f"DSGD_REQUIRE has network: {reason}")
        pytest.skip(f"no network of namespaces: {reason}")
    with ExitStack() as made:
        yield lambda **options: made.enter_context(Network(**options))
