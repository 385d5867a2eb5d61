"""The command dsgd-plot."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsgd.cli.plot import main
from tests.support.command import in_python
from tests.support.records import write_record


def test_the_command_writes_figures_and_tables_and_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_record(tmp_path / "runs" / "a", "sync")
    write_record(tmp_path / "runs" / "b", "gossip", status="running", marks=9)
    out = tmp_path / "new" / "figures"
    assert main([str(tmp_path / "runs"), "--out", str(out), "--format", "png,svg", "--x", "epochs"]) == 0
    stems = {"overview", "loss_epochs", "accuracy_epochs", "error_epochs", "idle", "discrepancy"}
    expected = {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")} | {
        "summary.csv",
        "summary.md",
        "summary.setting.json",
        "summary.tex",
    }
    assert {path.name for path in out.iterdir()} == expected
    text = capsys.readouterr().out
    assert all(str(out / name) in text for name in expected)
    assert "not drawn: speed_up (all runs with a target have nodes=8)" in text
    assert "1 of 2 runs have no summary (running or killed): shown up to their last evaluation" in text


def test_a_figure_of_ones_own_comes_with_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """One file of each format, named after field and key, and a row per point on the terminal."""
    for nodes in (2, 4):
        for seed in (0, 1):
            write_record(tmp_path / "runs" / f"{nodes}{seed}", "sync", nodes=nodes, seed=seed)
    options = f"--y test_error --x nodes --width single --format png,pdf --out {tmp_path / 'out'}"
    assert main([str(tmp_path / "runs"), *options.split()]) == 0
    expected = {f"test_error_by_nodes.{kind}" for kind in ("png", "pdf", "csv", "md", "setting.json", "tex")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == expected
    text = capsys.readouterr().out
    assert [line.split()[:2] for line in text.splitlines()[1:3]] == [["sync", "2"], ["sync", "4"]]
    assert all(str(tmp_path / "out" / name) in text for name in expected)


BAD = """
nowhere -> no run under nowhere: no such folder
 -> the following arguments are required: RUNS
run --format gif -> --format must be of png, svg, pdf, separated by commas, got 'gif'
run --log x --html a.html -> --html must not be given with --log: the page has its own curves
run --lines algo -> --lines needs --y, the field to draw
run --y test_loss -> --y needs --x: time, epochs, bytes, samples or a key
run --y test_los --x nodes -> --y must be a field of the runs, got 'test_los'; did you mean test_loss?
run --y test_loss --x nods -> --x must be a key of the runs, got 'nods'; did you mean nodes?
empty --y test_loss --x nodes -> no run under empty: no folder with metrics.jsonl, summary.json or env.json
"""


@pytest.mark.parametrize("case", BAD[1:-1].split("\n"))
def test_an_error_is_one_line_and_nothing_is_written(case: str, here: Path, capsys: pytest.CaptureFixture[str]):
    line, message = case.split(" -> ")
    write_record(here / "run")
    (here / "empty").mkdir()
    (here / "file").write_text("")
    before = sorted(here.rglob("*"))
    assert main(line.split()) == 2
    assert sorted(here.rglob("*")) == before
    assert capsys.readouterr() == ("", f"dsgd-plot: {message}\n")


def test_neither_reading_nor_drawing_imports_torch_and_help_no_matplotlib(tmp_path: Path):
    """`dsgd-plot --help` answers at once, and records can be drawn where torch is slow to load."""
    write_record(tmp_path / "run")
    script = "import sys\nfrom dsgd.cli.plot import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
    script += "print([name for name in ('torch', 'matplotlib') if name in sys.modules])"
    for line, loaded in ((["--help"], "[]"), ([tmp_path / "run", "--out", tmp_path / "out"], "['matplotlib']")):
        assert in_python(script, *line).splitlines()[-1] == loaded
