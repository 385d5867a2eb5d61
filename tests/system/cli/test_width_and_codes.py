"""Without a terminal, output has the width that COLUMNS asks for, and no codes that move a cursor."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import dsgd
from dsgd.cli.plot import main as plot
from tests.support.command import shell
from tests.support.records import write_record

RUN = "dsgd-run experiment=quadratic engine=sim nodes=2 budget.steps=20 eval.every_steps=5 hydra.run.dir=run"
COMPARE = (
    "dsgd-compare algo=sync,gossip experiment=quadratic nodes=2 budget.steps=20 cluster.gradient_s=0.01 target.loss=1 "
    "compare.tune={} compare.seeds=1"
)
MOVES = re.compile(r"\x1b\[[0-9;?]*[^0-9;?m]|\r")


@pytest.mark.parametrize("line", [RUN, COMPARE])
def test_forced_colours_are_lines_without_moves_of_the_cursor(line: str, tmp_path: Path) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        folder = tmp_path / name
        folder.mkdir()
        ended = shell(line, folder, **{name: "1"})
        assert ended.returncode == 0, ended.stderr
        assert not MOVES.search(ended.stdout + ended.stderr), repr(ended.stderr)
        assert re.search(r"^sync: epoch 0.0 of|^2 runs in", ended.stderr, re.M), ended.stderr


def test_tables_keep_to_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_record(tmp_path / "run", marks=4)
    widths = {}
    for columns in ("", "70", "110", "0", "x"):
        monkeypatch.setenv("COLUMNS", columns)
        assert plot([str(tmp_path / "run"), "--only", "loss_time", "--out", str(tmp_path / "out")]) == 0
        table = capsys.readouterr().out.partition("\n\n")[0]
        widths[columns] = max(map(len, table.splitlines()))
    assert widths["70"] <= 70 < widths["110"] <= 110 < widths[""] == widths["0"] == widths["x"], widths


def test_the_other_commands_keep_to_columns(tmp_path: Path) -> None:
    """Their table is the first of what they print."""
    for line in (RUN, COMPARE):
        text = shell(line, tmp_path, COLUMNS="60").stdout
        table = text.partition("times:")[0].strip("\n").splitlines()
        assert table
        assert max(map(len, table)) <= 60, text


def test_a_notebook_has_one_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A line about progress takes the place of the one before; other lines stay."""
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as Jupyter does
    dsgd.run(RUN.split()[1:-1], folder=tmp_path / "run")
    said = capfd.readouterr().err
    lines = said.split("\n")
    (bar,) = [line for line in lines if "epoch" in line]
    first, *others = bar.removeprefix("\r").split("\r")
    assert others
    assert all(len(text) >= len(first.rstrip()) for text in others)
    assert "\x1b" not in said
    assert lines[0].startswith("engine: sim")
