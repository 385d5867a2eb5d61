"""Rows of commands that stand in groups."""

from __future__ import annotations

from typing import Any

import pytest

from studies.reproduction.grouped_rows import flat_rows
from studies.reproduction.paper import Study

TABLE: dict[str, Any] = {
    "command": "algo={algo} nodes={nodes}",
    "columns": ["name", "nodes"],
    "rows": [
        {"algo": "sync", "rows": [["few", 4], ["many", 64]]},
        {"algo": "gossip", "command": "algo={algo} nodes={nodes} {braces}", "braces": "a={3: 4.0}", "rows": [["g", 8]]},
        {"algo": "easgd", "name": "{algo}_alone", "nodes": 2},
    ],
}


def test_a_row_has_the_fields_of_its_groups_unless_it_has_them_anew() -> None:
    rows = list(flat_rows(TABLE))
    assert {row["name"]: row["command"] for row in rows} == {
        "few": "algo=sync nodes=4",
        "many": "algo=sync nodes=64",
        "g": "algo=gossip nodes=8 a={3: 4.0}",
        "easgd_alone": "algo=easgd nodes=2",
    }


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        list(flat_rows(TABLE | {"algo": "sync", "rows": [["few", 4, 5]]}))


def test_a_study_says_which_numbers_a_key_has() -> None:
    study = Study("x", ("nodes=4,8", "cluster.bandwidth=1e9,2.5e9", "cluster.bandwidth=1000"))
    assert study.numbers("nodes") == (4, 8)
    assert study.numbers("cluster.bandwidth") == (1000,)  # the last one counts
