"""Tests run side by side, more than there are cores: none of them may take more than one, nor the commands that it
types, and none may judge how long something took."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import HealthCheck, settings

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
# measured gradient times are kept there: never in the user's own
CACHE = tempfile.TemporaryDirectory(prefix="dsgd-cache-")
os.environ["XDG_CACHE_HOME"] = CACHE.name
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_unconfigure() -> None:
    CACHE.cleanup()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return what -n auto means: many tests wait for processes, so more of them at a time than there are cores."""
    return len(os.sched_getaffinity(0)) * 3 // 2
