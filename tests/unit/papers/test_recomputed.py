"""The script of docs/explanation/papers.md, which reads the archive alone, comes to what the judge says."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from studies.evidence.pipeline import Pipelines
from studies.evidence.trial import write_trials
from studies.papers import CLAIMS
from studies.papers.jin2016.learning import periods
from studies.reproduction.pages import shown
from tests.unit.papers.test_jin2016 import pipelines

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "papers.md"


def run_script() -> None:
    (script,) = re.findall(r"^    import csv, .*?(?=^\S)", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    exec(compile(textwrap.dedent(script), PAGE.name, "exec"), {})


def test_a_strangers_script_recomputes_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = pipelines({}, {8: 1000.0})
    for comparison in periods("shapes"):
        comparison.need(CLAIMS["J4"], 3, archive)
    (tmp_path / "results" / "papers").mkdir(parents=True)
    write_trials(tmp_path / "results" / "papers" / "trials.csv", archive.trials)
    monkeypatch.chdir(tmp_path)
    run_script()
    stored = Pipelines.read(tmp_path / "results" / "papers")
    expected = [f"{each.what}: {shown(each.value(stored))}" for each in periods("shapes")]
    assert capsys.readouterr().out.splitlines() == expected


def test_it_comes_to_the_ratios_of_the_committed_page(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their intervals are longer on the page, by the error of the test samples."""
    monkeypatch.chdir(PAGE.parents[2])
    run_script()
    page = Path("results/papers/jin2016.md").read_text()
    rows = [line.partition(" [")[0] for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 3
    for row in rows:
        what, _, ratio = row.rpartition(": ")
        assert f"| shapes: {what} | {ratio} [" in page
