"""The file of a paper's runs: what goes in comes out, the same runs make the same bytes, and nothing else is taken."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies.cli import reproduce
from studies.reproduction import archive
from studies.reproduction.logged import Elsewhere, Logged
from tests.support import logged
from tests.support.contenders import contender
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


def contest() -> Logged:
    found = logged.contest(contender("sync", [1.0, 2.0]), contender("gossip, tau=10", [3.0, 4.0]))
    return replace(found, tuning=(logged.run("sync", {}, MARKS), logged.run("gossip", {}, MARKS)))


def elsewhere() -> Logged:
    """Return the same with the contenders under other conditions."""
    found = contest()
    cells = [
        Elsewhere(
            {"cluster.jitter": jitter}, (contender("sync", [5.0, 6.0]), contender("gossip, tau=10", [1 + jitter, 2.0]))
        )
        for jitter in (0.0, 0.3)
    ]
    return replace(found, elsewhere=tuple(cells))


def written(path: Path, found: Logged) -> Logged:
    archive.write(path, {"a": archive.rows_of("a", WORDS, found)})
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


def test_contenders_come_back_with_their_rates_and_their_runs(tmp_path: Path) -> None:
    before, after = contest(), written(tmp_path / "x.jsonl.gz", contest())
    for one, other in zip(before.contenders, after.contenders, strict=True):
        kept = ("name", "algo", "nodes", "chosen", "works", "spent")
        assert [getattr(one, name) for name in kept] == [getattr(other, name) for name in kept]
        assert [run.setting("seed") for run in one.runs] == [run.setting("seed") for run in other.runs]
    assert len(after.runs) == 4
    assert [len(run.metrics) for run in after.tuning] == [1, 1]  # how they ended


def test_the_same_runs_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        written(tmp_path / f"{name}.gz", contest())
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
    row = json.dumps({"study": "a", "words": [], "stage": "measured", "config": {}, "marks": {"x": [1], "y": []}})
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


def test_contenders_under_other_conditions_come_back_with_the_times_of_their_marks(tmp_path: Path) -> None:
    before, after = elsewhere(), written(tmp_path / "x.jsonl.gz", elsewhere())
    assert [one.name for one in after.contenders] == [one.name for one in before.contenders]
    assert len(after.runs) == len(before.runs)
    assert [cell.conditions for cell in after.elsewhere] == [{"cluster.jitter": 0.0}, {"cluster.jitter": 0.3}]
    for cell, other in zip(before.elsewhere, after.elsewhere, strict=True):
        for one, same in zip(cell.contenders, other.contenders, strict=True):
            assert (one.name, one.chosen, one.spent) == (same.name, same.chosen, same.spent)
            for run, again in zip(one.runs, same.runs, strict=True):
                assert set(again.metrics[0]) == {"time_s", "samples", "test_loss", "test_accuracy"}
                assert [mark["time_s"] for mark in again.metrics] == [mark["time_s"] for mark in run.metrics]


def test_parts_of_the_test_set_come_back_in_seven_digits_of_measured_runs_alone(tmp_path: Path) -> None:
    """They take less than 2 KB of a run, packed."""
    generator = np.random.default_rng(0)

    def ended() -> dict[str, Any]:
        hits = generator.binomial(100, 0.9, 100) / 100
        return {"test_fold_losses": generator.random(100).tolist(), "test_fold_accuracies": hits.tolist()}

    def made(**fields: Any) -> Logged:
        sides = [contender(name, [5.0, 6.0], **fields) for name in ("sync", "gossip")]
        cells = tuple(Elsewhere({"cluster.jitter": jitter}, tuple(sides)) for jitter in (0.0, 0.3))
        tuning = tuple(logged.run("sync", {}, MARKS, **fields) for _ in range(2))
        return Logged((logged.run("sync", {}, MARKS, **fields),), tuning, (), cells)

    fields = ended()
    after = written(tmp_path / "with.gz", made(**fields))
    written(tmp_path / "without.gz", made())
    assert after.runs[0].final("test_fold_losses") == [float(f"{loss:.7g}") for loss in fields["test_fold_losses"]]
    assert after.runs[0].final("test_fold_accuracies") == fields["test_fold_accuracies"]
    others = [*after.tuning, *(run for cell in after.elsewhere for one in cell.contenders for run in one.runs)]
    assert len(others) == 10
    assert not any(field in (run.summary or {}) for run in others for field in archive.FOLD_FIELDS)
    larger = (tmp_path / "with.gz").stat().st_size - (tmp_path / "without.gz").stat().st_size
    assert 0 < larger < 2000
    lost = written(tmp_path / "lost.gz", made(test_fold_losses=None, test_fold_accuracies=None))
    assert lost.runs[0].final("test_fold_losses") is None


def test_an_archive_with_anything_in_it_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    written(path, contest())
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
    changed = [row | {"time_s": value, "time_to_target_s": value, "spent": value, "works": value} for row in changed]
    (tmp_path / path.name).write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in changed).encode(), 1))
    status = reproduce.main(["chen2016", "--redraw", "--results", str(tmp_path)])
    said = capsys.readouterr().err
    assert status == 0 or (status, len(said.splitlines()), path.name in said) == (2, 1, True), said
