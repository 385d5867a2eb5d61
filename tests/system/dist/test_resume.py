"""Every way of keeping vectors, and of having something under way, goes on exactly after an interruption."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.engine.dist.test_resume import goes_on_exactly
from tests.support.prefork import Prefork
from tests.support.watched_run import CYCLE, EXACT


@pytest.mark.parametrize("algo", EXACT)
def test_a_run_in_lock_step_goes_on_exactly(prefork: Prefork, tmp_path: Path, algo: str) -> None:
    options = (*EXACT[algo], "optimizer.momentum=0.9", "optimizer.lr=0.01")
    goes_on_exactly(prefork, tmp_path, options, CYCLE[algo], signal.SIGINT)
