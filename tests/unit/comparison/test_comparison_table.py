"""The table of a comparison, and the files beside it."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

from dsgd.comparison.comparison_figure import write_comparison
from dsgd.comparison.comparison_table import comparison_table
from dsgd.comparison.contenders import Comparison, Prices, rank_contenders
from dsgd.report.look import Look
from dsgd.report.table_layout import MISSED
from tests.support.contenders import contender

INF = math.inf


@pytest.fixture
def found() -> Comparison:
    """Four contenders on five seeds, of which one misses the target twice and one always."""
    return rank_contenders([
        contender("sync, 8 nodes", [36.0] * 5, lr=0.4),
        contender("gossip, 16 nodes", [18.0, 9.0, 18.0, 18.0, 72 / 7], nodes=16, lr=0.1),
        contender("easgd, 8 nodes", [20, 20, 20, INF, INF]),
        contender("downpour, 8 nodes", [INF] * 5, status="diverged"),
    ])  # fmt: skip


def test_a_row_has_what_a_contender_needs_costs_and_sends(found: Comparison):
    """16 nodes for 18 s at 2 an hour are 0.16; 8 nodes for 36 s as much; 100 MB per node, whatever their number."""
    table = comparison_table(found, prices=Prices(2.0))
    assert table.headings == [
        "contender", "time to target (s)", "times the first's", "status", "test accuracy", "lr (works)", "cost",
        "tuning runs", "idle (%)", "sent per node (MB)", "first crossing (s)", "stable crossing (s)",
    ]  # fmt: skip
    rows = {row[0]: dict(zip(table.headings[1:], row[1:], strict=True)) for row in table.cells}
    assert list(rows) == ["gossip, 16 nodes", "sync, 8 nodes", "easgd, 8 nodes", "downpour, 8 nodes"]
    assert rows["gossip, 16 nodes"]["time to target (s)"] == "18.00 [9.000, 18.00]"
    assert rows["gossip, 16 nodes"]["cost"] == "0.1600 [0.08000, 0.1600]"
    assert rows["sync, 8 nodes"]["times the first's"] == "2.000 [2.000, 4.000]"
    assert rows["sync, 8 nodes"]["cost"] == "0.1600"
    assert rows["sync, 8 nodes"]["lr (works)"] == "0.4 (0.2–0.8)"
    assert rows["easgd, 8 nodes"]["time to target (s)"] == "20.00 [20.00, > 100.0]"
    assert rows["downpour, 8 nodes"]["cost"] == "never"
    assert rows["downpour, 8 nodes"]["status"] == "diverged"
    assert {row["sent per node (MB)"] for row in rows.values()} == {"100.0"}
    assert {row["idle (%)"] for row in rows.values()} == {"25.00"}
    assert (
        "the order: median over seeds of the ratio of both times of a seed, over that of gossip, 16 nodes"
        in table.caption
    )
    assert "corrected for 6 pairs of contenders: confidence below 95%, for which it takes 8 seeds" in table.caption
    assert "94% from 5 seeds" in table.caption
    assert "cost to the target: nodes × hours × 2; least in the median: easgd, 8 nodes" in table.caption
    assert "cost" not in comparison_table(found).headings


def test_traffic_costs_what_was_sent_until_the_target(found: Comparison):
    """sync on 8 nodes sends 800 MB in its 108 s, a third of it within 36 s: 0.8 at 3 per GB, and 0.16 for the nodes."""
    table = comparison_table(found, Prices(node_hour=2.0, egress_gb=3.0))
    rows = {row[0]: dict(zip(table.headings[1:], row[1:], strict=True)) for row in table.cells}
    assert rows["sync, 8 nodes"]["cost"] == "0.9600"
    assert rows["downpour, 8 nodes"]["cost"] == "never"
    assert "cost to the target: nodes × hours × 2 + GB sent × 3; least" in table.caption


def test_the_cost_decides_where_it_is_asked_to(tmp_path: Path):
    """gossip is twice as fast on three times the nodes: by time it is first, by cost sync."""
    contenders = [
        contender("sync, 8 nodes", [36.0, 30.0, 33.0, 36.0, 30.0, 33.0]),
        contender("gossip, 24 nodes", [18.0, 15.0, 16.5, 18.0, 15.0, 16.5], nodes=24),
    ]
    prices = Prices(node_hour=2.0)
    by_time = write_comparison(contenders, tmp_path, prices, Look(formats=["svg"]))
    assert by_time.startswith(
        "gossip (24 nodes) reaches a test accuracy of 0.9 first, after 16.5 s; sync (8 nodes) takes 2.0 times as long"
    )
    by_cost = write_comparison(contenders, tmp_path, prices, Look(formats=["svg"]), by_cost=True)
    assert by_cost.startswith(
        "sync (8 nodes) reaches a test accuracy of 0.9 at the least cost, 0.147; that of gossip (24 nodes) is 1.5 "
        "times as high."
    )
    assert "ratio of both costs" in by_cost
    table = comparison_table(rank_contenders(contenders, prices))
    assert table.headings[:4] == ["contender", "cost", "times the first's", "time to target (s)"]
    assert "cost (nodes × hours × 2)" in (tmp_path / "contest.svg").read_text()


def test_several_tuned_keys_are_named(found: Comparison):
    one = contender("easgd", [10.0])
    two = replace(contender("sync", [20.0]), chosen={"optimizer.lr": 0.2, "algo.tau": 4}, works=None, spent=9)
    table = comparison_table(rank_contenders([one, two]))
    column = table.headings.index("chosen (works)")
    assert [row[column] for row in table.cells] == ["lr=0.1 (0.05–0.2)", "lr=0.2, tau=4"]


def test_where_nobody_got_there_ratios_are_undecided():
    table = comparison_table(rank_contenders([contender("sync", [INF] * 2), contender("easgd", [INF] * 2)]))
    assert [row[1:3] for row in table.cells] == [["> 100.0", "undecided"]] * 2


def test_the_ratio_of_the_first_to_itself_is_one_also_where_it_missed_the_target_on_some_seeds():
    table = comparison_table(rank_contenders([contender("sync", [10, 10, INF]), contender("easgd", [50, INF, INF])]))
    assert table.cells[0][2] == "1.000"
    assert MISSED in table.caption.split("\n")


def test_the_csv_has_a_line_per_run_with_all_digits_and_every_differing_key(tmp_path: Path, found: Comparison):
    write_comparison([one.contender for one in found.standings], tmp_path, Prices(2.0), Look(formats=["svg"]))
    with (tmp_path / "contest.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 20
    assert {line["seed"] for line in lines} == {"0", "1", "2", "3", "4"}
    assert {line["nodes"] for line in lines} == {"8", "16"}
    assert {line["optimizer.lr"] for line in lines} == {"0.1", "0.4"}
    exact = [line for line in lines if line["contender"] == "gossip, 16 nodes"][-1]
    assert float(exact["time_to_target_s"]) == pytest.approx(72 / 7, rel=1e-12)
    assert float(exact["cost"]) == pytest.approx(72 / 7 * 16 / 3600 * 2, rel=1e-12)
    assert (exact["works_low"], exact["works_high"], exact["tuning_runs"]) == ("0.05", "0.2", "15")
    assert [line["time_to_target_s"] for line in lines if line["contender"] == "downpour, 8 nodes"] == ["inf"] * 5
    ends = {line["target_censored_at_s"] for line in lines if line["time_to_target_s"] == "inf"}
    assert ends == {"100", ""}, "an end for who did not get there, none for who diverged"
