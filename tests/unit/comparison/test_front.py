"""The front of time and cost: contenders that no other beats in both."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dsgd.comparison.contenders import Prices
from dsgd.comparison.tradeoffs import front_points, write_front
from dsgd.report.look import Look
from dsgd.report.style import NoData
from tests.support.contenders import contender

PRICES = Prices(node_hour=2.0)


def test_the_front_holds_those_that_no_other_beats_in_both(tmp_path: Path) -> None:
    """16 s on 24 nodes and 30 s on 8 are a choice; 40 s on 8 nodes and 30 s on 16 are beaten; one never gets there."""
    contenders = [
        contender("sync, 8 nodes", [30.0, 33.0, 36.0]),
        contender("gossip, 24 nodes", [16.0, 17.0, 18.0], nodes=24),
        contender("easgd, 8 nodes", [40.0, 41.0, 42.0]),
        contender("dpsgd, 16 nodes", [33.0, 33.0, 33.0], nodes=16),
        contender("downpour, 8 nodes", [math.inf] * 3),
    ]
    points = front_points(contenders, PRICES)
    assert [(point.contender.label, point.beaten) for point in points] == [
        ("gossip, 24 nodes", False),
        ("sync, 8 nodes", False),
        ("dpsgd, 16 nodes", True),
        ("easgd, 8 nodes", True),
    ]
    assert write_front(contenders, PRICES, tmp_path / "front", Look(formats=["svg"])) == (
        "Time and cost: gossip (24 nodes) (17 s, 0.227) and sync (8 nodes) (33 s, 0.147) are beaten by no other "
        "in both."
    )
    assert "nodes × hours × 2" in (tmp_path / "front.svg").read_text()


def test_without_a_target_reached_there_is_no_front(tmp_path: Path) -> None:
    with pytest.raises(NoData, match=r"^no contender with a known cost reached the target on most seeds$"):
        write_front([contender("sync", [math.inf] * 3)], PRICES, tmp_path / "front")
    assert list(tmp_path.iterdir()) == []
