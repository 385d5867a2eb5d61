"""A few algorithms on emulated accelerators; `tests/system/accelerator` has all of them, and all that uses a device."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.dist.conftest import prefork, prefork_server
from tests.support.emulated import check_like_the_cpu, emulated, emulated_server
from tests.support.prefork import Prefork

__all__ = ["emulated", "emulated_server", "prefork", "prefork_server"]


@pytest.mark.parametrize("algo", ["gossip", "sync", "easgd", "dpsgd", "diloco"])
def test_an_algorithm_on_four_devices_is_the_one_on_the_cpu(
    emulated: Prefork, prefork: Prefork, tmp_path: Path, algo: str
) -> None:
    check_like_the_cpu(emulated, prefork, tmp_path, algo, "nodes=4")
