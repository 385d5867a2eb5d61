"""Compiled kernels: there only where a compiler was when the package was installed."""

from __future__ import annotations

from dsgd.gradients.compiled import bf16_is_there, kernels_are_there
from tests.support.required import need


def require_kernels() -> None:
    """Skip the test where there are none; with `kernels` in DSGD_REQUIRE it fails."""
    need("kernels", None if kernels_are_there() else "none were compiled, which needs a C compiler at installation")


def require_amx() -> None:
    """Skip the test where kernels or the processor do not compute in bf16; with `amx` in DSGD_REQUIRE it fails."""
    require_kernels()
    need("amx", None if bf16_is_there() else "this processor, or its system, has no tiles of bf16")
