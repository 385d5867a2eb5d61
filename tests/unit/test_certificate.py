"""A certificate names the first difference: by step, then in the module's order of tensors, then by rank."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch
from torch import Tensor

from dsgd.certificate.certificate import Certificate, CertificateLine, compared
from tests.support.each_row import each_row

STEPS, NODES = 5, 3


def path() -> dict[str, Tensor]:
    """Return the path of a module with a matrix, a vector and a number: [steps, nodes, ...]."""
    shapes = {"weight": (2, 2), "bias": (2,), "count": ()}
    return {name: torch.ones(STEPS, NODES, *shape, dtype=torch.float64) for name, shape in shapes.items()}


@each_row(
    ("changes", "text"),
    [
        ({("bias", 3, 2, 1): 2.0}, "after step 3: bias[1] of rank 2 is 2, not 1"),
        ({("bias", 1, 0, 0): 2.0, ("weight", 2, 0, 0, 0): 2.0}, "after step 1: bias[0] of rank 0 is 2, not 1"),
        ({("bias", 1, 0, 0): 2.0, ("weight", 1, 2, 0, 1): 3.0}, "after step 1: weight[0, 1] of rank 2 is 3, not 1"),
        ({("bias", 1, 1, 0): 2.0, ("bias", 1, 2, 1): 3.0}, "after step 1: bias[0] of rank 1 is 2, not 1, as on rank 2"),
        ({("count", 0, 0): 4.0}, "before the first step: count of rank 0 is 4, not 1"),
        ({("bias", 4, 0, 0): nan}, "after step 4: bias[0] of rank 0 is nan, not 1"),
        ({("bias", 4, 0, 0): inf}, "after step 4: bias[0] of rank 0 is inf, not 1"),
        ({("bias", 4, 0, 0): 1 + 2e-12}, f"after step 4: bias[0] of rank 0 is {1 + 2e-12:.17g}, not 1"),
    ],
)
def test_the_first_difference_is_named(changes: dict[tuple[Any, ...], float], text: str) -> None:
    theirs = path()
    for (name, *place), value in changes.items():
        theirs[name][tuple(place)] = value
    assert compared("", theirs, path()).difference == f"differs {text}"


def test_what_rounding_may_do_is_no_difference() -> None:
    theirs = path()
    theirs["bias"][4, 0, 0] += 5e-13
    assert compared("", theirs, path()).difference == ""


@each_row("value", [inf, -inf, nan])
def test_what_has_overflowed_on_both_sides_is_equal_and_hides_nothing(value: float) -> None:
    """The scale of a tensor comes from its finite numbers."""
    theirs, ours = path(), path()
    theirs["weight"][4, 0, 0, 0] = ours["weight"][4, 0, 0, 0] = value
    assert compared("", theirs, ours).difference == ""
    theirs["weight"][4, 1, 0, 0] = 1.5
    assert compared("", theirs, ours).difference == "differs after step 4: weight[0, 0] of rank 1 is 1.5, not 1"


def test_a_difference_is_relative_to_numbers_above_one() -> None:
    theirs, ours = path(), path()
    theirs["bias"][2], ours["bias"][2] = 1e6, 1e6 + 1e-7
    assert compared("", theirs, ours).largest == pytest.approx(1e-13, rel=1e-3)


def test_other_tensors_are_named() -> None:
    theirs = path()
    theirs["module.bias"] = theirs.pop("bias")
    theirs["count"] = theirs["count"][..., None]
    text = compared("", theirs, path()).difference
    assert text == "differs in the names or shapes of its parameters and buffers: bias, count, module.bias"


@each_row(
    ("difference", "named", "verdict"),
    [
        ("", None, "certified: 1 comparisons, each equal to 1e-12"),
        ("fails: rank 0", None, "differs"),
        ("differs", [], "differs: no suspect alone explains it"),
        ("differs", ["divides twice", "stale snapshot"], "differs: divides twice; or stale snapshot"),
    ],
)
def test_the_verdict_has_the_suspects(difference: str, named: list[str] | None, verdict: str) -> None:
    assert Certificate([CertificateLine("", 0.0, difference)], named).verdict == verdict
