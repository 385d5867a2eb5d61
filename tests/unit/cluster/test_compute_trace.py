"""Traces of gradient times: what a file may hold, and what they take the place of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dsgd.cluster import Cluster
from tests.support.each_row import each_row


def replayed(folder: Path, text: str, **keys: Any) -> Cluster:
    path = folder / "times.csv"
    path.write_text(text)
    return Cluster(**{"gradient_s": None, "bandwidth": 1e9, "latency_s": 0.0, "compute_trace": str(path), **keys})


@each_row(
    ("lines", "rule"),
    [
        ("1,0,0.5\n\n1,0,0.5", "must have each rank once in a step, got 0 in 1 again (times.csv, line 4)"),
        ("1,0.5,0.5", "must have a whole rank >= 0 on every line, got 0.5 (times.csv, line 2)"),
        ("1,0,fast", "must hold 3 numbers a line, got '1,0,fast' (times.csv, line 2)"),
        ("1,0,0", "must have seconds in (0, 1e+09], got 0 (times.csv, line 2)"),
        ("1,1000000000000,1", "must have every rank in every step, got no rank 0 in step 1 (times.csv)"),
        ("", "must hold at least one line of numbers, got none (times.csv)"),
    ],
)
def test_a_broken_trace_is_one_line(lines: str, rule: str, tmp_path: Path) -> None:
    expected = f"compute_trace {rule}".replace("times.csv", str(tmp_path / "times.csv"))
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        replayed(tmp_path, f"step,rank,seconds\n{lines}")


def test_a_trace_needs_its_header(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^compute_trace must begin with the line step,rank,seconds, got '1,0,0\.5' "):
        replayed(tmp_path, "1,0,0.5\n")


@each_row(
    ("keys", "rule"),
    [
        ({"gradient_s": 0.1}, "gradient_s must be null with compute_trace, which has its own, got 0.1"),
        ({"jitter": 0.1}, "jitter must be 0 with compute_trace, which has its own, got 0.1"),
    ],
)
def test_a_trace_takes_the_place_of_other_keys(keys: dict[str, Any], rule: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(rule)}$"):
        replayed(tmp_path, "step,rank,seconds\n1,0,0.5\n", **keys)


def test_the_longest_thing_is_the_longest_gradient_of_the_slowest_node(tmp_path: Path) -> None:
    cluster = replayed(tmp_path, "step,rank,seconds\n3,1,0.5\n3,0,2\n", slow_nodes={1: 3.0})
    assert (cluster.longest_s, cluster.mean_gradient_s) == (6.0, 1.25)
