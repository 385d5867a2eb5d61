from __future__ import annotations

import pytest

from tests.engine.dist.conftest import prefork, prefork_server
from tests.support.emulated import emulated, emulated_server
from tests.support.emulated_devices import need_emulated_devices

__all__ = ["emulated", "emulated_server", "prefork", "prefork_server"]


@pytest.fixture(autouse=True, scope="session")
def emulated_devices() -> None:
    """Compiled before the first test here, not when tests are collected."""
    need_emulated_devices()
