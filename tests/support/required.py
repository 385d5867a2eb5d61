"""Skip tests for which this machine lacks something, unless DSGD_REQUIRE names it."""

from __future__ import annotations

import os

import pytest


def need(what: str, reason: str | None) -> None:
    """Skip the test for a reason; with `what` in the list DSGD_REQUIRE, fail it. reason: None: nothing is missing."""
    if reason is None:
        return
    if what in os.environ.get("DSGD_REQUIRE", "").split(","):
        pytest.fail(f"DSGD_REQUIRE has {what}: {reason}")
    pytest.skip(f"no {what}: {reason}")
