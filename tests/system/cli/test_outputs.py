"""Wherever a command is told to write, it looks whether it can before it measures, runs or draws anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dsgd.cli import calibrate, plot, sweep
from dsgd.comparison import command as compare
from studies.cli import reproduce
from tests.support.command import call

TINY = "experiment=quadratic nodes=2 budget.steps=2 engine=sim"
FILES = [
    (calibrate.main, f"--out {{}} --steps 2 {TINY}", "--out"),
    (compare.main, f"--html {{}} algo=sync,gossip {TINY}", "--html"),
    (plot.main, "--html {} runs", "--html"),
]
FOLDERS = [
    (compare.main, f"--folder {{}} algo=sync,gossip compare.tune={{{{}}}} {TINY}", "--folder"),
    (plot.main, "--out {} runs", "--out"),
    (plot.main, "--out {} --y step_s --x nodes runs", "--out"),
    (reproduce.main, "--folder {} all", "--folder"),
    (reproduce.main, "--results {} all", "--results"),
    (sweep.main, f"submit --folder {{}} algo=sync {TINY}", "--folder"),
]
Main = Callable[[Sequence[str]], int]


@pytest.fixture
def here(here: Path) -> Path:
    """A folder with a record, a file, and a folder named like a file."""
    assert call(*TINY.split(), "hydra.run.dir=runs/a").status == 0
    (here / "file").write_text("")
    (here / "folder.yaml").mkdir()
    return here


def refused(main: Main, line: str, key: str, here: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what is printed of a command that must do nothing, without the name of the command."""
    before = sorted(here.rglob("*"))
    capsys.readouterr()
    assert main(line.split()) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1), captured.err
    assert sorted(here.rglob("*")) == before
    assert f"{key} must be " in captured.err
    return captured.err


def test_a_file_that_cannot_be_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "link.yaml").symlink_to("/dev/null")
    for main, line, key in FILES:
        assert "got the folder folder.yaml" in refused(main, line.format("folder.yaml"), key, here, capsys)
    for path, reason in (
        ("file/below.yaml", "got file/below.yaml (Not a directory)"),
        ("/proc/nobody/mine.yaml", "got /proc/nobody/mine.yaml (No such file or directory)"),
        ("link.yaml", "got link.yaml, which is not a regular one"),
    ):
        assert reason in refused(plot.main, f"--html {path} runs", "--html", here, capsys)


def test_a_folder_that_cannot_be_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for main, line, key in FOLDERS:
        assert "file" in refused(main, line.format("file"), key, here, capsys)
    assert "(No such file or directory)" in refused(plot.main, "--out /proc/nobody runs", "--out", here, capsys)


def test_a_file_that_can_be_written_is_left_as_it_is(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "page.html").write_text("before")
    assert plot.main(["--html", "page.html", "nothing"]) == 2
    assert (here / "page.html").read_text() == "before"
    assert plot.main(["--html", "page.html", "runs"]) == 0
    assert "before" not in (here / "page.html").read_text()
