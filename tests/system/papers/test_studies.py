"""Every run of every study and pipeline can be planned; pages and figures follow from the logged runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dsgd.comparison.entries import FOLDERS
from dsgd.runner.plan import plan_run
from studies.cli.reproduce import main
from studies.evidence.make_trials import missing_of, overrides_of
from studies.evidence.pipeline import Pipelines
from studies.evidence.trial import Trial
from studies.papers import papers
from studies.reproduction.paper import Paper
from tests.support.simulate import tree
from tests.system.data.test_fashion_mnist import need_fashion_mnist

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results" / "papers"
PAPERS = papers()


def check(overrides: list[str]) -> None:
    """Plan the first run of a command line."""
    job = tree().jobs([*overrides, *FOLDERS], multirun=True)[0]
    plan_run(job.values, job.overrides)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.key)
def test_every_study_and_every_contender_resolves(paper: Paper, here: Path) -> None:
    for study in paper.studies:
        if study.by is None:
            check(list(study.overrides))
    wanted = [run for run in missing_of(paper.needs_of(), Pipelines({}, {}), 3) if run.replicate == 0]
    alike = {(getattr(run, "task", None), run.contender): run for run in wanted}
    if any(isinstance(run, Trial) and run.task == "fashion" for run in alike.values()):
        need_fashion_mnist()
    if any(isinstance(run, Trial) and run.task == "text" for run in alike.values()):
        (here / "kjv.txt").write_text("In the beginning.\n" * 250_000)
    for run in alike.values():
        check(overrides_of(run))


# of the score, in README
SHOWN = ("About time", "About learning, on generated images", "About learning, on real images")


def test_redrawn_pages_and_figures_are_the_committed_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "papers"
    copy.mkdir()
    for path in (*RESULTS.glob("*.jsonl.gz"), *RESULTS.glob("*.csv")):
        shutil.copy(path, copy)
    assert main(["--redraw", "--results", str(copy)]) == 0
    score = capsys.readouterr().out.splitlines()
    committed = {path.name: path.read_bytes() for path in RESULTS.iterdir()}
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == committed
    front = " ".join((ROOT / "README.md").read_text().split())
    shown = [line for line in score if line.startswith(SHOWN)]
    assert len(shown) == len(SHOWN)
    assert all(line in front for line in shown)
