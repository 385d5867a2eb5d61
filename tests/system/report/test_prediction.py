"""Simulated runs beside real ones by the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsgd.cli.plot import main
from tests.unit.report.test_prediction import write_pair


def test_the_command_writes_and_prints_predictions_only_where_there_are_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_pair(tmp_path / "runs", "sync", 10.0, 9.0)
    assert main([str(tmp_path / "runs"), "--out", str(tmp_path / "both"), "--only", "predicted"]) == 0
    kinds = ("csv", "md", "setting.json", "tex")
    names = {"predicted.png"} | {f"{stem}.{kind}" for stem in ("predicted", "summary") for kind in kinds}
    assert {path.name for path in (tmp_path / "both").iterdir()} == names
    text = capsys.readouterr().out
    assert "predicted/measured" in text
    assert "- time of a step, predicted over measured: 0.90 (sync, 8 nodes, lan)" in text.splitlines()
    one = str(tmp_path / "runs" / "0" / "simulated")
    assert main([one, "--out", str(tmp_path / "one"), "--only", "predicted"]) == 0
    assert {path.name for path in (tmp_path / "one").iterdir()} == {f"summary.{kind}" for kind in kinds}
    text = capsys.readouterr().out
    assert "predicted/measured" not in text
    assert "not drawn: predicted (no completed run of engine=dist)" in text
