"""Where one contender overtakes another: the interval over seeds, the sentence and the files."""

from __future__ import annotations

import json
import math
from pathlib import Path

from dsgd.comparison.tradeoffs import Overtaking, overtaking_sentence, write_overtaking
from dsgd.report.look import Look
from tests.support.contenders import run_reaching


def overtaking(bounds: list[tuple[float, float]]) -> Overtaking:
    """Two contenders whose times cross at 1e8 bit/s, on as many seeds as there are bounds."""
    runs = {
        value: [
            (run_reaching("gossip", 10.0, seed), run_reaching("sync", 10.0 * (1e8 / value) ** 0.5, seed))
            for seed in range(len(bounds))
        ]
        for value in (1e7, 1e8, 1e9)
    }
    return Overtaking("cluster.bandwidth", "gossip", "sync", ("gossip", "sync"), bounds, runs)


def test_the_interval_holds_what_lies_between_the_values_of_each_seed() -> None:
    """Its low end is the lowest lower value, its high end the highest upper one; five seeds leave none out."""
    found = overtaking([(1e8, 1.04e8), (0.9e8, 0.93e8), (1.1e8, 1.14e8), (0.8e8, 0.83e8), (1.3e8, 1.35e8)])
    assert (found.value.low, found.value.high) == (0.8e8, 1.35e8)
    assert math.isclose(found.value.median, math.sqrt(1e8 * 1.04e8))
    assert overtaking_sentence(found) == (
        "bandwidth: gossip reaches a test accuracy of 0.9 first below 102 Mbit/s [80 Mbit/s, 135 Mbit/s], sync above "
        "it; confidence 94% from 5 seeds."
    )


def test_a_seed_without_a_crossing_in_the_bracket_leaves_the_interval_open() -> None:
    found = overtaking([(1e8, 1.04e8), (0.9e8, 0.93e8), (1e9, math.inf)])
    assert (found.value.low, found.value.high) == (0.9e8, math.inf)
    assert overtaking_sentence(found).endswith(
        "[90 Mbit/s, unknown], sync above it; confidence 75% from 3 seeds; 1 of them without a crossing in the bracket."
    )


def test_ratios_fall_through_one_and_all_is_written(tmp_path: Path) -> None:
    found = overtaking([(0.98e8, 1.02e8)] * 2)
    assert [round(found.ratio(value).median, 3) for value in sorted(found.runs)] == [3.162, 1.0, 0.316]
    table = write_overtaking(found, tmp_path / "crossing", Look(formats=["svg"]))
    assert [row[0] for row in table.rows] == ["10", "100", "1000"]
    assert (tmp_path / "crossing.csv").read_text().count("\n") == 1 + 3 * 2
    whole = json.loads((tmp_path / "crossing.setting.json").read_text())
    assert (whole["crossing"]["below"], whole["crossing"]["bounds"][0]) == ("gossip", [0.98e8, 1.02e8])
    assert table.headings[0] == "bandwidth (Mbit/s)"
    assert "bandwidth (Mbit/s)" in (tmp_path / "crossing.svg").read_text()
    lines = (tmp_path / "crossing.txt").read_text().splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["bandwidth", "setting"]
    write_overtaking(found, tmp_path / "bare", Look(formats=["svg"], captions=False))
    assert (tmp_path / "bare.txt").read_text().splitlines() == [
        *lines,
        "dots: seeds; line and band: the crossing, median and interval over seeds",
    ]
    assert "setting" not in (tmp_path / "bare.svg").read_text()
