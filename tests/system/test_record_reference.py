"""docs/reference/record.md names what a record has, and nothing else, on both engines."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.prefork import Prefork

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "record.md").read_text()
OTHERS = {"sim": "dist", "dist": "sim"}


def documented(heading: str, engine: str) -> set[str]:
    """The names in the first column below a heading, without those of the other engine and of GPUs."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \|.*\| (.*) \|$", section, flags=re.MULTILINE)
    elsewhere = (f"`{OTHERS[engine]}` only", "with a GPU only")
    return {name for name, definition in rows if not definition.startswith(elsewhere)}


@pytest.fixture(scope="module", params=["sim", "dist"])
def record(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """An engine, and the folder of a run of it that leaves everything it can."""
    folder = tmp_path_factory.mktemp(request.param) / "run"
    small = ["algo=gossip", "nodes=2", "budget.epochs=0.5", "trace=true", "engine.keep_checkpoint=true"]
    prefork = Prefork()
    try:
        assert prefork.run(folder, *small, f"engine={request.param}").wait() == 0
    finally:
        prefork.close()
    return request.param, folder


def test_every_field_is_documented_and_every_documented_one_is_there(record: tuple[str, Path]) -> None:
    engine, folder = record
    marks = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {name for mark in marks for name in mark} == documented("metrics.jsonl", engine)
    assert json.loads((folder / "summary.json").read_text()).keys() == documented("summary.json", engine)
    assert json.loads((folder / "env.json").read_text()).keys() == documented("env.json", engine)


def test_every_file_is_documented_and_every_documented_one_is_there(record: tuple[str, Path]) -> None:
    engine, folder = record
    names = re.findall(r"^\| `([^`]+)` \|", TEXT.partition("\n## ")[0], flags=re.MULTILINE)
    found = {path.name + "/" * path.is_dir() for path in folder.iterdir() if not path.name.startswith(".")}
    assert found == {name for name in names if engine == "dist" or name != "logs/"}


def test_a_field_of_both_is_the_same_in_both() -> None:
    """What a summary has from the last mark says so, and the mark has it."""
    section = TEXT.partition("\n## summary.json\n")[2].partition("\n## ")[0]
    same = set(re.findall(r"^\| `([^`]+)` \|.*\| as in a mark \|$", section, flags=re.MULTILINE))
    assert same <= documented("metrics.jsonl", "sim")
    assert len(same) > 10
