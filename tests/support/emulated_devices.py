"""Processes that have emulated accelerators, and what these note of their defects."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import torch

from tests.support.accelerator.emulated import build
from tests.support.required import need

ACCELERATOR = Path(__file__).parent / "accelerator"  # its folder on PYTHONPATH is how torch finds it
ROOT = Path(__file__).parents[2]


def need_emulated_devices() -> None:
    """Compile them where they are not. Skips the test without a compiler; with `compiler` in DSGD_REQUIRE it fails."""
    need("compiler", None if build.compiler() else "the emulated accelerator is compiled by g++, or what CXX names")
    _built()


@cache
def _built() -> Path:
    return build.build(Path(torch.__path__[0]), torch.__version__)


def with_devices(findings: Path, **changes: str) -> dict[str, str]:
    """Return the environment of a process that has them, as have its children. findings: the folder for what they find
    wrong, made here."""
    findings.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join([str(ACCELERATOR), str(ROOT)])
    return os.environ | {"PYTHONPATH": paths, "EMU_FINDINGS": str(findings), "OMP_NUM_THREADS": "1"} | changes


def findings_in(findings: Path) -> list[str]:
    """Return what the devices of all processes have noted, a line each."""
    return [line for path in sorted(findings.iterdir()) for line in path.read_text(encoding="utf-8").splitlines()]
