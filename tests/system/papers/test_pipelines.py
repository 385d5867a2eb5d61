"""Pipelines of real runs by dsgd-reproduce: what is missing is run, a run is a line, and any line comes out again."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from studies.cli import reproduce
from studies.cli.reproduce import main
from studies.evidence.contrast import Contrast, seconds
from studies.evidence.forecast import SAMPLE_S
from studies.evidence.pipeline import Candidate, Pipelines
from studies.evidence.tasks import BATCHES, TASKS
from studies.evidence.trial import MEASURE, TUNE, Clock, read_clocks, read_trials
from studies.reproduction.criterion import ClaimKind, Criterion, Statement
from studies.reproduction.paper import Claim, Paper
from studies.reproduction.verdict import Finding, judged

TINY = ("data=shapes", "data.resolution=8", "data.train_size=2000", "data.test_size=1000", "model=mlp")
TINY += ("schedule=cosine", "engine=sim", "cluster=jin2016", "budget.epochs=null")
GOSSIP, ALL_REDUCE = (Candidate("digits", name, 2, 40, 2) for name in ("gossip mode=push tau=1", "sync"))
STATED = Statement(
    "N1", ClaimKind.LEARNING, "Gossip is soonest", "Nobody", ">= 0.1", {"sooner": Criterion.parse("at_least 0.1")}
)


EXACT, LOCAL = (seconds([candidate], 1.5, overlap=True, jitter=0.3) for candidate in (ALL_REDUCE, GOSSIP))
SOONER = Contrast("sooner", "time of all-reduce over that of gossip", EXACT, LOCAL)


def judge(pipelines: Pipelines, task: str) -> Finding:
    return judged([SOONER.check(STATED, pipelines, 1, 1)], f"By runs on {task}.")


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    claim = Claim(STATED, judge, ("digits",), (partial(SOONER.need, STATED, 1),))
    paper = Paper("nobody", "A paper that nobody wrote", "Nobody 2026", "Nothing.", claims=(claim,))
    monkeypatch.setitem(TASKS, "digits", TINY)
    monkeypatch.setitem(BATCHES, "digits", 8)
    monkeypatch.setitem(SAMPLE_S, "digits", 1e-5)
    monkeypatch.setattr(reproduce, "papers", lambda: [paper])
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results" / "papers"


def test_missing_runs_are_made_judged_and_made_again_to_the_same_bytes(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nobody", "--jobs", "2"]) == 0
    assert capsys.readouterr().out.startswith("About learning, on all tasks: 1 claims, 1 ")
    trials, clocks = read_trials(results / "trials.csv"), read_clocks(results / "clocks.csv")
    assert {trial.contender for trial in trials} == {"sync", "gossip mode=push tau=1"}
    assert {trial.stage for trial in trials} == {TUNE, MEASURE}
    assert all(len(trials[trial].parts) == (10 if trial.stage == MEASURE else 0) for trial in trials)
    assert {clock.jitter for clock in clocks} == {0.3}
    slow, fast = (clocks[Clock(name, 2, name == "sync", 0.3, 0)] for name in ("sync", "gossip mode=push tau=1"))
    assert slow > fast > 0.2  # seconds of a gradient, 0.2; all-reduce waits for the slower worker
    page = (results / "nobody.md").read_text()
    assert "By runs on digits." in page
    assert "dsgd-reproduce --claim N1" in page

    written = {name: (results / name).read_bytes() for name in ("trials.csv", "clocks.csv", "nobody.md")}
    lines = written["trials.csv"].decode().splitlines(keepends=True)
    (results / "trials.csv").write_text("".join(lines[:3] + lines[5:]))  # the head, and all runs but three
    assert main(["nobody"]) == 0
    assert {name: (results / name).read_bytes() for name in written} == written
    assert not (Path("outputs") / "papers" / "pipelines").exists()
    assert main(["--redraw"]) == 0
    assert {name: (results / name).read_bytes() for name in written} == written


def test_one_replicate_is_quick_shows_a_number_and_decides_nothing(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nobody", "--quick", "--forecast"]) == 0
    runs = int(capsys.readouterr().out.removeprefix("N1: ").partition(" ")[0])
    assert main(["nobody", "--forecast"]) == 0
    assert int(capsys.readouterr().out.removeprefix("N1: ").partition(" ")[0]) == 3 * runs
    assert main(["nobody", "--quick", "--jobs", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "About learning, on all tasks: 1 claims, 1 INCONCLUSIVE",
        "About learning, on digits: 1 claims, 1 open (1 unfinished)",
    ]
    quick = Path("outputs") / "quick"
    assert {trial.replicate for trial in read_trials(quick / "trials.csv")} == {0}
    for page in (quick / "nobody.md", quick / "README.md"):
        assert "Quick: one replicate of each pipeline" in page.read_text()
    assert re.search(r"time of all-reduce over that of gossip \| \d\.\d+ \|", (quick / "nobody.md").read_text())
    assert not results.exists()


def test_a_line_that_is_no_run_ends_in_an_error_that_names_it(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results.mkdir(parents=True)
    head = "task,contender,nodes,stage,replicate,steps,level,rate,seed,loss,accuracy,parts,commit,accuracies,apart\n"
    (results / "trials.csv").write_text(head + "digits,sync,two,tune,0,40,2,0.2,1000,1.0,0.5,,abc,,\n")
    assert main(["nobody"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("dsgd-reproduce: results/papers/trials.csv:2 must be a trial, got: invalid literal")
    assert said.count("\n") == 1
    assert {path.name for path in results.iterdir()} <= {"trials.csv", ".lock"}
