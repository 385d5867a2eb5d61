"""The checkpoint knows the lines of metrics.jsonl that it counts: other ones are refused before anything is touched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import call
from tests.support.each_row import each_row

RUN = ("experiment=quadratic", "nodes=2", "budget.steps=20", "eval.every_steps=5", "engine=sim")
Lines = list[bytes]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after its checkpoint, which counts four of its five marks."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert call(*RUN, "engine.keep_checkpoint=true", f"hydra.run.dir={folder}").status == 0
    (folder / "summary.json").unlink()
    header = json.loads((folder / "checkpoint.pt").read_bytes().partition(b"\n")[0])
    assert (header["lines"], len((folder / "metrics.jsonl").read_bytes().splitlines())) == (4, 5)
    return folder


def with_line(number: int, change: Callable[[bytes], bytes]) -> Callable[[Lines], Lines]:
    return lambda lines: [change(line) if i == number else line for i, line in enumerate(lines)]


DAMAGES: dict[str, Callable[[Lines], Lines]] = {
    "cut off": with_line(1, lambda line: line[:20] + b"\n"),
    "zeros": with_line(2, lambda line: bytes(len(line) - 1) + b"\n"),
    "a digit": with_line(3, lambda line: line.replace(b'"samples": ', b'"samples": 1')),
    "a space": with_line(0, lambda line: b" " + line),
    "another end of a line": with_line(0, lambda line: line[:-1] + b"\r\n"),
    "doubled": lambda lines: [lines[0], *lines],
    "swapped": lambda lines: [lines[1], lines[0], *lines[2:]],
    "one is missing": lambda lines: [*lines[:2], *lines[3:], lines[4]],
    "empty": lambda lines: [b"\n"] * 5,
    "too few": lambda lines: lines[:3],
    "torn": lambda lines: [*lines[:3], lines[3][:-1]],
    "none": lambda lines: [],
}


@each_row("name", DAMAGES)
@pytest.mark.parametrize("way", ["resume={0}", "resume=auto hydra.run.dir={0}", "resume={0} budget.steps=40"])
def test_lines_that_the_checkpoint_does_not_know(name: str, way: str, whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    metrics = folder / "metrics.jsonl"
    metrics.write_bytes(b"".join(DAMAGES[name](metrics.read_bytes().splitlines(keepends=True))))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    result = call(*way.format(folder).split())
    assert (result.status, result.out, len(result.err.splitlines())) == (2, "", 1), result.err
    assert result.err.startswith("resume must have the first 4 lines of metrics.jsonl as the run wrote them, got ")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_lines_that_the_checkpoint_does_not_count_may_be_anything(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join(lines[:4]) + b"\0[{\r" + lines[4])
    result = call(f"resume={folder}")
    assert result.status == 0, result.err
    again = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert (again[:4], len(again)) == (lines[:4], 5)
