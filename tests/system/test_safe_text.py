"""Names that a stranger has chosen do nothing to what shows them, and begin no line of their own: in commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsgd.cli.plot import main as plot
from dsgd.cli.sweep import main as sweep
from dsgd.comparison.comparison_figure import write_comparison
from dsgd.comparison.contenders import Contender
from dsgd.record.checkpoint_file import write_checkpoint
from dsgd.record.reader import find_runs, lines_sha256, read_config
from dsgd.report.look import Look
from dsgd.sweep.manifest import locked_sweep, point_of
from tests.support.command import call, shell
from tests.support.records import reach, write_record
from tests.unit.record.test_safe_text import HOSTILE, is_calm

MARK = "INJECTED"
SEVERAL_LINES = f"a\x1b[2J\n{MARK} b\r{MARK}\u2028{MARK}\x85{MARK} `|<i>"
# One for each of what shows names: a terminal, a page, matplotlib, which parses what stands between dollars, and lines.
WORST = [HOSTILE[0], HOSTILE[4], HOSTILE[7], SEVERAL_LINES]


def assert_calm(*texts: str) -> None:
    for text in texts:
        assert not any(line.startswith(MARK) for line in text.splitlines()), text
        assert is_calm(text.replace("\n", "")), text


def written(top: Path) -> list[str]:
    kinds = (".csv", ".md", ".tex", ".txt", ".svg")
    return [path.read_text() for path in top.rglob("*") if path.suffix in kinds]


def hostile_runs(top: Path, name: str) -> list[Path]:
    """Two runs whose names, wherever a record has them, and folders are hostile."""
    folders = []
    for number in range(2):
        folder = write_record(top / f"{number}{name.replace('/', '').replace(chr(0), '')}"[:60], "gossip", marks=4)
        config = read_config(folder)
        for group in ("algo", "model", "data", "optimizer"):
            config[group]["name"] = f"{name}{number}"
        config |= {"topology": {"name": name}, f"key{name}": f"{name}{number}"}
        config["cluster"]["time_model"] = name
        (folder / "config.yaml").write_text(json.dumps(config))
        summary = json.loads((folder / "summary.json").read_text())
        keys = ("algo", "model", "data", "time_model", "error")
        (folder / "summary.json").write_text(json.dumps(summary | dict.fromkeys(keys, name)))
        (folder / "env.json").write_text(json.dumps({"dsgd": name, f"k{name}": name, "host": [name]}))
        folders.append(folder)
    return folders


@pytest.mark.parametrize("name", WORST, ids=ascii)
def test_records_of_a_stranger(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile_runs(tmp_path / "runs", name)
    only = [] if name == SEVERAL_LINES else ["--only", "loss_time"]  # of one kind as of all
    assert plot([str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--format", "svg", *only]) == 0
    assert plot([str(tmp_path / "runs"), "--html", str(tmp_path / "page.html")]) == 0
    assert plot([str(tmp_path / "runs"), "--y", "test_loss", "--x", "nodes", "--out", str(tmp_path / "out")]) == 0
    (tmp_path / "runs" / "broken\x1b[2J").mkdir()
    (tmp_path / "runs" / "broken\x1b[2J" / "summary.json").write_text("x")
    assert plot([str(tmp_path / "runs")]) == 2
    said = capsys.readouterr()
    page = (tmp_path / "page.html").read_text()
    assert_calm(said.out, said.err, page.replace("\t", ""), *written(tmp_path / "out"))
    assert "<script>alert" not in page
    assert "<img src=x" not in page


@pytest.mark.parametrize("name", WORST, ids=ascii)
def test_a_comparison_of_a_stranger(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    contenders = []
    for number, folder in enumerate(hostile_runs(tmp_path / "runs", name)):
        reach(folder, 1.0 + number)
        contenders.append(Contender(f"{name}{number}", find_runs([folder]), chosen={}, works=None, spent=0))
    verdict = write_comparison(contenders, tmp_path, look=Look(formats=["svg"]))
    said = capfd.readouterr()
    assert_calm(verdict, said.out, said.err, *written(tmp_path))


def test_a_checkpoint_of_a_stranger(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its names go into progress, tables and errors."""
    line = ["experiment=quadratic", "engine=sim", "nodes=2", "budget.steps=4", "eval.every_steps=2"]
    assert call(*line, f"hydra.run.dir={tmp_path}/run").status == 0
    config = read_config(tmp_path / "run")
    for group in ("algo", "model", "data"):
        config[group]["name"] = HOSTILE[0]
    (tmp_path / "run" / "summary.json").unlink()
    for changes in ({}, {"wrong\x1b[2J": 1}, {"nodes": "\x1b[2J"}):
        header = {"config": {**config, **changes, "resume": None}, "engine": "sim", "lines": 1, "wall_s": 0.5}
        header["lines_sha256"] = lines_sha256(tmp_path / "run", 1)
        write_checkpoint(tmp_path / "run", header, {"fingerprint": {"events": 3}, "progress": {}, "vectors": []})
        result = call(f"resume={tmp_path}/run")
        assert result.status == 2
        assert is_calm((result.out + result.err).replace("\n", ""))


def test_a_sweep_of_a_stranger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"algo": {"name": "x\x1b[2J[red]"}, "nodes": 2, "seed": 0, "engine": {"name": "sim"}}
    point = point_of(config, ["\x1b[2J[/red]"], None)
    with locked_sweep(tmp_path) as writer:
        writer.points([point])
    for words in (["status", "--points"], ["logs", "*"], ["logs", "\x1b[2J"]):
        sweep([*words, "--folder", str(tmp_path)])
        said = capsys.readouterr()
        assert is_calm((said.out + said.err).replace("\n", ""))
        assert "\\x1b[2J" in said.out + said.err


def test_a_run_whose_folder_and_label_have_several_lines(tmp_path: Path) -> None:
    """As a process of its own: what libraries print counts, too."""
    module = "from torch import nn\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    (tmp_path / "nets.py").write_text(module)
    words = ["data=digits", "nodes=2", "engine=sim", "cluster.gradient_s=0.01", "budget.steps=4"]
    words += ["eval.every_steps=2", "model=import", "model.target=nets.net", "budget.epochs=null"]
    label = f"a\n{MARK} b\r{MARK} |<i>"
    line = " ".join(["dsgd-run", *words, f"'model.label=\"{label}\"'", f"'hydra.run.dir=\"a\n{MARK}\"'"])
    ended = shell(line, tmp_path, PYTHONPATH=".")
    assert_calm(ended.stdout, ended.stderr)
