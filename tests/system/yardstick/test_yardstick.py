"""The yardstick: every row is predicted by the model as it is."""

from __future__ import annotations

import shlex

import pytest

from studies.cli.yardstick import predict
from studies.yardstick.measured_table import MeasuredTable
from tests.support.simulate import values_of
from tests.unit.yardstick.test_yardstick import TABLES, committed


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.key)
def test_every_prediction_is_that_of_the_model_as_it_is(table: MeasuredTable) -> None:
    for row, value in zip(table.rows, committed()[table.key], strict=True):
        assert predict(row, values_of(*shlex.split(row.command)[1:])) == pytest.approx(value, rel=1e-9)
