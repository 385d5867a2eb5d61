"""Vectors as rows of a matrix: copied only where they do not lie so already."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dsgd.gradients.rows import repeat_as_rows, stack_rows
from dsgd.gradients.unfolded import ALIGNED

ITEM = torch.get_default_dtype().itemsize


def vectors(n: int, d: int) -> list[Tensor]:
    return [torch.arange(d) + 100.0 * row for row in range(n)]


def assert_rows(found: Tensor, expected: Sequence[Tensor]) -> None:
    assert torch.equal(found, torch.stack(list(expected)))
    assert all(row.data_ptr() % (ALIGNED * ITEM) == 0 for row in found)


@given(n=st.integers(1, 6), d=st.integers(1, 70))
def test_repeated_rows_are_rows_already(n: int, d: int) -> None:
    found = repeat_as_rows(vectors(1, d)[0], n)
    for row, vector in enumerate(found):
        vector.add_(row)  # every one has memory of its own
    rows = stack_rows(found)
    assert_rows(rows, [vectors(1, d)[0] + row for row in range(n)])
    assert rows.data_ptr() == found[0].data_ptr()
    part = stack_rows(found[n // 2 :])
    assert_rows(part, found[n // 2 :])
    assert part.data_ptr() == found[n // 2].data_ptr()


@given(n=st.integers(2, 6), d=st.integers(1, 70))
def test_vectors_from_anywhere_are_brought_stack_rows(n: int, d: int) -> None:
    assert_rows(stack_rows(vectors(n, d)), vectors(n, d))


@pytest.mark.parametrize(
    "order", [[2, 1, 0], [0, 0, 1], [0, 2, 3], [1, 2, 2], [0, 0, 0]], ids=lambda order: "".join(map(str, order))
)
def test_rows_in_another_order_are_copied(order: list[int]) -> None:
    rows = repeat_as_rows(torch.zeros(20), 4)
    for row, vector in enumerate(rows):
        vector.fill_(row)
    assert_rows(stack_rows([rows[row] for row in order]), [rows[row] for row in order])


def test_rows_that_are_not_aligned_are_copied() -> None:
    matrix = torch.arange(3 * 33.0).view(3, 33)
    assert_rows(stack_rows(list(matrix)), list(matrix))
    shifted = torch.arange(3 * 32 + 1.0)[1:].view(3, 32)
    assert_rows(stack_rows(list(shifted)), list(shifted))
