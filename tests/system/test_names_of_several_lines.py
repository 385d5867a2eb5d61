"""A name of several lines, or with bytes that a terminal obeys, begins no line of its own in any command or file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsgd.cli.plot import main as plot
from dsgd.record.reader import find_runs
from dsgd.report.contest import Contender
from dsgd.report.contest_figure import write_contest
from tests.support.command import shell
from tests.support.records import reach
from tests.system.test_safe_text import hostile_runs
from tests.unit.test_safe_text import is_calm

MARK = "INJECTED"
NAME = f"a\x1b[2J\n{MARK} b\r{MARK}\u2028{MARK}\x85{MARK} `|<i>"


def assert_calm(*texts: str) -> None:
    for text in texts:
        assert not any(line.startswith(MARK) for line in text.splitlines()), text
        assert is_calm(text.replace("\n", "")), text


def written(top: Path) -> list[str]:
    kinds = (".csv", ".md", ".tex", ".txt", ".html", ".svg")
    return [path.read_text() for path in top.rglob("*") if path.suffix in kinds]


def test_records(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hostile_runs(tmp_path / "runs", NAME)
    out = str(tmp_path / "out")
    assert plot([str(tmp_path / "runs"), "--out", out, "--format", "svg"]) == 0
    assert plot([str(tmp_path / "runs"), "--html", str(tmp_path / "page.html")]) == 0
    assert plot([str(tmp_path / "runs"), "--y", "test_loss", "--x", "nodes", "--out", out]) == 0
    said = capfd.readouterr()
    assert_calm(said.out, said.err, *written(tmp_path))


def test_a_contest(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    contenders = []
    for number, folder in enumerate(hostile_runs(tmp_path / "runs", NAME)):
        reach(folder, 1.0 + number)
        (one,) = find_runs([folder])
        contenders.append(Contender(one.algorithm, one.algorithm, 8, [one], {}, None, 3))
    verdict = write_contest(contenders, tmp_path, formats=["svg"])
    said = capfd.readouterr()
    assert_calm(verdict, said.out, said.err, *written(tmp_path))


def test_a_run_with_such_a_folder_and_label(tmp_path: Path) -> None:
    """As a process of its own: what libraries print counts, too."""
    module = "from torch import nn\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    (tmp_path / "nets.py").write_text(module)
    words: list[Any] = ["data=digits", "nodes=2", "engine=sim", "cluster.gradient_s=0.01", "budget.steps=4"]
    words += ["eval.every_steps=2", "model=import", "model.target=nets.net", "budget.epochs=null"]
    label = NAME.replace("\x1b", "").replace("`", "").replace("\u2028", "").replace("\x85", "")
    line = " ".join(["dsgd-run", *words, f"'model.label=\"{label}\"'", f"'hydra.run.dir=\"a\n{MARK}\"'"])
    ended = shell(line, tmp_path, PYTHONPATH=".")
    assert_calm(ended.stdout, ended.stderr)
