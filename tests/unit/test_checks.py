"""A rule of an option is what its error says."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from dsgd.keys import check_options


@pytest.mark.parametrize(
    ("rule", "allowed", "refused"),
    [
        (">= 1", (1, 1.5, 2**70), (0, 0.999, -1, math.inf, math.nan)),
        ("> 0", (1e-300, 3), (0, -1, math.inf, math.nan)),
        ("in [0, 1)", (0, 0.5), (-0.1, 1, math.nan, math.inf)),
        ("in (0, 1]", (0.1, 1), (0, 1.1, math.nan)),
        ("in [1, tau = 4]", (1, 4), (0, 5)),
        ("in [0, 1e+30]", (0, 1e30), (-1, 2e30, math.inf)),
        ("in (0, 1) or null", (None, 0.5), (0, 1)),
        ("> 0 or null", (None, 1), (0, math.inf)),
        (("a", "b"), ("a", "b"), ("c", None, 1)),
    ],
)
def test_a_value_follows_the_rule_or_the_error_has_it(rule: Any, allowed: tuple[Any, ...], refused: tuple[Any, ...]):
    for value in allowed:
        check_options(SimpleNamespace(beta=value), beta=rule)
    text = rule if isinstance(rule, str) else "one of a, b"
    for value in refused:
        with pytest.raises(ValueError, match=r"^beta must be ") as raised:
            check_options(SimpleNamespace(beta=value), beta=rule)
        assert str(raised.value) == f"beta must be {text}, got {value!r}"


def test_the_first_option_that_is_wrong_is_named():
    with pytest.raises(ValueError, match=r"^beta must be in \[0, 1\), got 1$"):
        check_options(SimpleNamespace(tau=1, beta=1, mix=7), tau=">= 1", beta="in [0, 1)", mix="in [0, 1]")
