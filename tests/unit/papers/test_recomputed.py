"""The script of docs/explanation/papers.md, which reads the archive alone, comes to what the judge says."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from studies.evidence.race import Pipelines
from studies.evidence.trial import write_trials
from studies.papers.real.jin2016_real import _periods, j4
from studies.reproduction.pages import shown
from tests.unit.papers.test_jin2016_real import pipelines

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "papers.md"


def test_a_strangers_script_recomputes_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (script,) = re.findall(r"^    import csv, .*?(?=^\S)", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    archive = pipelines({}, {8: 1000.0})
    for comparison in _periods("shapes"):
        comparison.need(archive)
    (tmp_path / "results" / "papers").mkdir(parents=True)
    write_trials(tmp_path / "results" / "papers" / "trials.csv", archive.trials)
    monkeypatch.chdir(tmp_path)
    exec(compile(textwrap.dedent(script), PAGE.name, "exec"), {})
    stored = Pipelines.read(tmp_path / "results" / "papers")
    expected = [f"{check.what}: {shown(check.value)}" for check in j4(stored, "shapes").checks]
    assert capsys.readouterr().out.splitlines() == expected
