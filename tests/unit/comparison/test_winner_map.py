"""Maps of winners: cells, ties, what is derived, and their table."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from dsgd.comparison.contenders import rank_contenders
from dsgd.comparison.winner_map import MapCell, map_cell, map_figure, map_table, write_map
from dsgd.report.interval import Estimate
from dsgd.report.look import Look
from tests.support.contenders import contender
from tests.support.each_row import each_row

INF = math.inf
CLEAR, TIE = Estimate(1.7, 1.5, 2.0, 5), Estimate(1.1, 0.9, 1.3, 5)
NONE = Estimate(math.nan, math.nan, math.nan, 0)


def cells() -> list[MapCell]:
    """Bandwidths 1e7 and 1e8 B/s by 8 and 16 nodes, one place of the four missing."""
    return [
        MapCell({"cluster.bandwidth": 1e8, "nodes": 16}, "sync", "sync", CLEAR, True),
        MapCell({"cluster.bandwidth": 1e7, "nodes": 16}, "gossip, tau=4", "gossip", TIE, False),
        MapCell({"cluster.bandwidth": 1e7, "nodes": 8}, "", "", NONE, True),
    ]


def test_the_table_has_a_row_per_cell_in_the_order_of_the_keys(tmp_path: Path):
    table = map_table(cells())
    assert table.headings[:3] == ["bandwidth (Mbit/s)", "nodes", "winner"]
    assert table.cells == [
        ["10", "8", "nobody", "-", "-", "measured"],
        ["10", "16", "gossip, tau=4", "1.100 [0.9000, 1.300]", "no", "derived"],
        ["100", "16", "sync", "1.700 [1.500, 2.000]", "yes", "measured"],
    ]
    write_map(cells(), tmp_path / "map", Look("double", ("png", "svg")), ["target 0.9"])
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".csv", ".json", ".md", ".png", ".svg", ".tex"]
    with (tmp_path / "map.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["cluster.bandwidth"] for line in lines] == ["1e+07", "1e+07", "1e+08"]
    assert [(line["low"], line["measured"]) for line in lines] == [("", "true"), ("0.9", "false"), ("1.5", "true")]


def test_the_cell_of_a_comparison_has_its_winner_and_the_closest_rival():
    """The closest is who cannot be told apart, though another has the better median."""
    found = rank_contenders([
        contender("sync", [10, 10, 10, 10, 10]),
        contender("easgd", [11, 11, 11, 11, 11]),
        contender("gossip", [12, 12, 9, 12, 12]),
    ])  # fmt: skip
    assert map_cell({"nodes": 8}, found, {"easgd"}).measured
    assert not map_cell({"nodes": 8}, found, {"gossip"}).measured
    cell = map_cell({"nodes": 8}, found, {"sync"})
    assert (cell.winner, cell.algo, cell.tie, cell.lead) == ("sync", "sync", True, "1.2× ○")
    alone = map_cell({"nodes": 8}, rank_contenders([contender("sync", [10, 10]), contender("gossip", [INF, INF])]))
    assert (alone.lead, alone.tie) == ("> 10×", False), "missed in 100 s, against 10 s"
    diverged = rank_contenders([contender("sync", [10, 10]), contender("gossip", [INF, INF], status="diverged")])
    assert map_cell({"nodes": 8}, diverged).lead == "alone"
    assert [row[3:5] for row in map_table([alone]).csv_rows] == [["ratio", "low"], ["inf", "inf"]]
    assert dict(zip(*map_table([alone]).csv_rows, strict=True))["ratio_above"] == "10"
    assert "> 10.00" in map_table([alone]).cells[0]
    assert map_cell({"nodes": 8}, rank_contenders([contender("sync", [10, 10])])).lead == "alone"
    nobody = map_cell({"nodes": 8}, rank_contenders([contender("sync", [INF, INF])]))
    assert (nobody.winner, nobody.lead, nobody.tie) == ("", "> 100 s", False)
    lost = map_cell({"nodes": 8}, rank_contenders([contender("sync", [INF, INF], status="diverged")]))
    assert (lost.winner, lost.lead) == ("", "")


@each_row(
    ("values", "message"),
    [
        ([], r"^a map must have a cell, got none$"),
        ([{"a": 1, "b": 2, "c": 3}], r"^a map must have one or two keys, got a, b, c$"),
        ([{"a": 1}, {"b": 1}], r"^cells of a map must have the keys a, got b$"),
        ([{"a": 1}, {"a": 1.0}], r"^cells of a map must have places that differ, got 1 twice$"),
    ],
)
def test_cells_that_make_no_map_are_refused(values: list[dict[str, float]], message: str):
    with pytest.raises(ValueError, match=message):
        map_figure([MapCell(place, "sync", "sync", CLEAR, True) for place in values])
