"""Compiled kernels: there only where a compiler was when the package was installed."""

from __future__ import annotations

import os

import pytest

from dsgd.gradients.compiled import bf16_is_there, kernels_are_there


def require_kernels() -> None:
    """Skip the test where there are none; with `kernels` in DSGD_REQUIRE it fails."""
    if kernels_are_there():
        return
    if "kernels" in os.environ.get("DSGD_REQUIRE", "").split(","):
        pytest.fail("DSGD_REQUIRE has kernels: none were compiled")
    pytest.skip("no compiled kernels: needs a C compiler at installation")


def require_amx() -> None:
    """Skip the test where kernels or the processor do not compute in bf16; with `amx` in DSGD_REQUIRE it fails."""
    require_kernels()
    if bf16_is_there():
        return
    if "amx" in os.environ.get("DSGD_REQUIRE", "").split(","):
        pytest.fail("DSGD_REQUIRE has amx: this processor, or its system, has no tiles of bf16")
    pytest.skip("no AMX: needs a processor with tiles of bf16, and Linux")
