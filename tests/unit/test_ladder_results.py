"""The committed ladders: the page, tables, sentences and forecasts follow from the scores of every seed."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dsgd.comparison.ladder import forecast_text, outlook
from dsgd.comparison.ladder_report import ladder_numbers

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results" / "ladders"
FOLDERS = sorted(path.parent for path in RESULTS.glob("*/scores.csv"))


def ladders() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ladders", ROOT / "benchmarks" / "ladders.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ladders"] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


LADDERS = ladders()


def test_the_page_follows_from_the_scores() -> None:
    assert (RESULTS / "README.md").read_text() == LADDERS.page()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_what_a_ladder_wrote_follows_from_its_scores(folder: Path) -> None:
    climbed = LADDERS.read_scores(folder / "scores.csv")
    every = [*climbed.scores, *climbed.ratios]
    sentences = [outlook(scores, climbed.sizes) for scores in climbed.ratios]
    assert (folder / "verdict.txt").read_text().splitlines() == sentences
    stored = json.loads((folder / "forecast.json").read_text())
    assert_close(stored, json.loads(forecast_text(every, climbed.sizes)))
    with (folder / "ladder.csv").open(newline="") as file:
        (heads, *rows) = csv.reader(file)
    assert_close(rows, ladder_numbers(every, heads[1 : len(climbed.sizes) + 1], climbed.sizes)[1:])


def assert_close(one: Any, other: Any) -> None:
    """Fail unless both have the same texts, and numbers that differ by what processors round differently."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_close(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_close(mine, theirs)
    elif one != other:
        assert float(one) == pytest.approx(float(other), rel=2e-5)


def test_each_folder_is_a_ladder_of_the_benchmark() -> None:
    assert {folder.name for folder in FOLDERS} <= {*LADDERS.LADDERS}
    for folder in FOLDERS:
        assert len(json.loads((folder / "forecast.json").read_text())["sizes"]) >= 3
