"""The file of a paper's runs: what goes in comes out, the same runs make the same bytes, and nothing else is taken."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from studies.cli import reproduce
from studies.reproduction import archive
from studies.reproduction.logged import Logged
from tests.support import logged
from tests.support.each_row import each_row
from tests.support.wrong_json import wrong

WORDS = ("algo=sync,gossip", "nodes=8")
MARKS = [{"wall_s": 0.1, "time_s": 0.0, "test_loss": 2.3}, {"wall_s": 0.2, "time_s": 1 / 3, "test_loss": None}]


def grid() -> Logged:
    return logged.study(
        logged.run(
            "sync",
            {"optimizer.lr": 0.1, "cluster.slow_nodes": {3: 2.0}, "cluster.bandwidth": math.inf},
            MARKS,
            time_s=1 / 3,
            bytes_sent_total=10**12,
            wall_s=7.0,
        ),
        logged.run("gossip", {"optimizer.lr": 0.2}, MARKS, status="diverged", test_loss=None),
    )


def written(path: Path, found: Logged) -> Logged:
    archive.write(path, {"a": archive.rows_of("a", WORDS, found.runs)})
    return archive.logged_of(archive.read(path)["a"])


def test_runs_come_back_with_their_settings_marks_and_summaries(tmp_path: Path) -> None:
    before = grid()
    after = written(tmp_path / "x.jsonl.gz", before)
    assert [run.config for run in after.runs] == [run.config for run in before.runs]
    assert after.runs[0].metrics == [{key: value for key, value in mark.items() if key != "wall_s"} for mark in MARKS]
    assert after.runs[0].final("time_s") == 1 / 3
    assert after.runs[0].final("bytes_sent_total") == 10**12
    assert [run.outcome for run in after.runs] == ["completed", "diverged"]
    assert after.runs[0].final("wall_s") is None  # of the host, not of the run


def test_the_same_runs_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        written(tmp_path / f"{name}.gz", grid())
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()


def test_pandas_reads_it_in_one_line(tmp_path: Path) -> None:
    written(tmp_path / "x.jsonl.gz", grid())
    import pandas

    frame: Any = pandas.read_json(tmp_path / "x.jsonl.gz", lines=True)
    assert list(frame["algo"]) == ["sync", "gossip"]
    assert frame["marks"][0]["time_s"] == pytest.approx([0.0, 1 / 3])
    assert frame["config"][1]["optimizer"]["lr"] == 0.2


def test_no_file_has_no_runs(tmp_path: Path) -> None:
    assert archive.read(tmp_path / "none.jsonl.gz") == {}


def damaged(content: bytes) -> dict[str, bytes]:
    row = json.dumps({"study": "a", "words": [], "config": {}, "marks": {"x": [1], "y": []}})
    return {
        "cut off": content[:-20],
        "empty": b"",
        "not JSON": gzip.compress(b"hello\n"),
        "of something else": gzip.compress(b'{"a": 1}\n'),
        "columns of several lengths": gzip.compress(row.encode()),
    }


@each_row("kind", damaged(b""))
def test_anything_else_is_refused_in_one_line_that_names_the_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.jsonl.gz"
    written(path, grid())
    path.write_bytes(damaged(path.read_bytes())[kind])
    with pytest.raises(ValueError, match=r"x\.jsonl\.gz.* must be ") as refused:
        archive.read(path)
    assert "\n" not in str(refused.value)


def test_an_archive_with_anything_in_it_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    written(path, grid())
    line, *others = gzip.decompress(path.read_bytes()).decode().splitlines()
    row = json.loads(line)
    refused = 0
    for other in wrong(row | {"config": {"algo": {"name": "sync"}}}):
        path.write_bytes(gzip.compress("\n".join([other, *others, ""]).encode(), 1))
        said = ""
        try:
            with archive.reading(path):
                for rows in archive.read(path).values():
                    archive.logged_of(rows)
        except ValueError as error:
            said = str(error)
        assert not said or (str(path) in said and "\n" not in said)
        refused += bool(said)
    assert refused > 50


@each_row("value", [{}, [[]], "x", None])
def test_values_that_cannot_be_judged_end_the_command_in_one_line(
    value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path("results/papers/chen2016.jsonl.gz")
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    changed = [
        row | {"marks": {name: [value for _ in column] for name, column in row["marks"].items()}} for row in rows
    ]
    changed = [row | {"time_s": value, "time_to_target_s": value} for row in changed]
    (tmp_path / path.name).write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in changed).encode(), 1))
    status = reproduce.main(["chen2016", "--redraw", "--results", str(tmp_path)])
    said = capsys.readouterr().err
    assert status == 0 or (status, len(said.splitlines()), path.name in said) == (2, 1, True), said
