"""Compiled kernels: there only where a compiler was when the package was installed."""

from __future__ import annotations

import os

import pytest

from dsgd.gradients.compiled import kernels_are_there


def require_kernels() -> None:
    """Skip the test where there are none; with `kernels` in DSGD_REQUIRE it fails."""
    if kernels_are_there():
        return
    if "kernels" in os.environ.get("DSGD_REQUIRE", "").split(","):
        pytest.fail("DSGD_REQUIRE has kernels: none were compiled")
    pytest.skip("no compiled kernels: needs a C compiler at installation")
