"""All papers: docs/explanation/papers.md lists their claims, their command lines resolve, and their pages follow from
the logged runs."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from dsgd.cli.compare import compare_options
from dsgd.cli.compose import ConfigTree
from dsgd.cli.entries import FOLDERS, Composer
from dsgd.runner.plan import plan_run
from studies.cli.reproduce import main
from studies.papers import CLAIMS as STATEMENTS
from studies.papers import papers
from studies.papers.real.tasks import TASKS, TEXT
from studies.reproduction.criterion import ClaimKind
from studies.reproduction.paper import REAL, SCALES, SMALL, Paper, Study
from tests.support.long import all_long_but

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results" / "papers"
DOCUMENT = ROOT / "docs" / "explanation" / "papers.md"
CLAIMS = {
    *("J1", "J2", "J3", "J4", "J5", "J6", "L1", "L2", "L3a", "L3b", "L4", "L5", "L6", "L7", "L8"),
    *("T1", "T2", "T3", "T4", "T5", "T6", "T7"),
    *("E1", "E2", "E3", "E4", "E5", "E6", "A1", "A2", "A3", "A4", "A5", "G1", "G2", "G3", "G4", "G5"),
    *("B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B9", "B10", "B11", "B12a", "B12b"),
    *("D1", "D2", "D3", "D4", "D5", "D6", "D7", "D8"),
}

PAPERS = papers(SMALL)
BOOK_BYTES = 4_404_412  # of the King James Bible as docs/explanation/papers.md gets it
LIKE = {"imagenet": 64, "cifar10": 32}  # pixels, of generated images in the place of the published ones
AT_REAL_SCALE = papers(REAL)
STUDIES = [(paper, study) for paper in (*PAPERS, *AT_REAL_SCALE) for study in paper.studies if study.by is None]


def table() -> str:
    """Return the table of claims in docs/explanation/papers.md; `python -m tests.unit.papers.test_papers` prints it."""
    lines = ["| claim | what the paper says | source | passes with |", "|---|---|---|---|"]
    for paper in PAPERS:
        stated = [claim.statement for claim in paper.claims]
        lines += [f"| {one.id} | {one.text} | {one.source} | {one.passes} |" for one in stated]
    return "\n".join(lines)


def real_table() -> str:
    """Return the table of what claims pass with at the real scale, which docs/explanation/papers.md has, too."""
    lines = ["| claim | passes with, on each of its tasks |", "|---|---|"]
    for paper in AT_REAL_SCALE:
        lines += [f"| {claim.id} | {claim.statement.passes} |" for claim in paper.claims]
    return "\n".join(lines)


def test_every_claim_is_there_once() -> None:
    assert Counter(claim.id for paper in PAPERS for claim in paper.claims) == dict.fromkeys(CLAIMS, 1)


def test_the_document_has_the_statements_as_they_are() -> None:
    """A threshold that moves after a measurement moves in a document that is not drawn again."""
    assert table() in DOCUMENT.read_text()
    assert real_table() in DOCUMENT.read_text()


def test_every_statement_is_judged() -> None:
    assert {claim.statement.id for paper in PAPERS for claim in paper.claims} == CLAIMS == set(STATEMENTS)


def test_claims_of_the_real_scale_are_about_learning_and_have_a_paper() -> None:
    claims = [claim.statement for paper in AT_REAL_SCALE for claim in paper.claims]
    assert {claim.id for claim in claims} == {id for id, stated in STATEMENTS.items() if stated.real is not None}
    assert {claim.kind for claim in claims} == {ClaimKind.LEARNING}


@pytest.mark.parametrize("paper", [*PAPERS, *AT_REAL_SCALE], ids=lambda paper: paper.key)
def test_a_paper_is_called_like_its_file_and_shows_what_it_has(paper: Paper) -> None:
    folder = ROOT / "studies" / "papers"
    module = (folder / REAL if paper in AT_REAL_SCALE else folder) / paper.key
    assert module.with_suffix(".py").is_file() or module.is_dir()
    names = [chart.name for chart in paper.charts]
    assert len({*names}) == len(names)
    used = {name for claim in paper.claims for name in claim.needs} | {n for one in paper.charts for n in one.studies}
    assert used == {study.name for study in paper.studies} - {"base"}  # `base` has chosen a rate that is typed


def planned(study: Study, scale: str) -> int:
    """Plan every run of a study that does not depend on other runs, one of its seeds; at full scale on generated images
    of that shape. Returns how many there are."""
    words = study.at(scale)
    assert words is not None
    words = tuple(
        re.sub(r"^compare\.seeds=\d+", "compare.seeds=1", re.sub(r"^(seed=\d+),.*", r"\1", word)) for word in words
    )
    if scale == "full":
        (experiment,) = (word for word in words if word.startswith("experiment="))
        side = LIKE["imagenet" if experiment.endswith("imagenet") else "cifar10"]
        words = (*words, "data=shapes", f"data.resolution={side}", "data.channels=3", "data.train_size=100000")
    tunes_methods = any(
        word.startswith("compare.tune=") and "algo." in word for word in words
    )  # which the first may lack
    if scale == REAL and not study.name.endswith(TASKS[0]) and not tunes_methods:  # the others are the first task's
        words = tuple(re.sub(r"^(compare\.contenders=\[\{[^}]*\}).*", r"\1]", word) for word in words)
    tree = ConfigTree(None)
    if study.tuned:
        own = [word for word in words if word.startswith("compare.")]
        composer = Composer(tree, compare_options(own))
        entries = composer.entries([word for word in words if word not in own])
        jobs = [job for entry in entries for job in composer.measuring(entry, ())] if not entries[0].axes else [
            job
            for entry in entries
            for job in composer.measuring(entry, tuple(axis.grid[0] for axis in entry.axes))
        ]  # fmt: skip
    else:
        jobs = tree.jobs([*words, *FOLDERS], multirun=True).runs
    if scale == REAL and not study.name.endswith(TASKS[0]):
        jobs = jobs[:1]  # of the other task, whose files are read, all other points are alike
    for job in jobs:
        plan_run(job.values, job.overrides)
    return len(jobs)


@pytest.mark.parametrize(("paper", "study"), all_long_but((), STUDIES), ids=[f"{p.key}-{s.name}" for p, s in STUDIES])
def test_every_point_of_a_study_resolves(
    paper: Paper, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if study.name.endswith(TEXT):
        (tmp_path / "kjv.txt").write_bytes(bytes(BOOK_BYTES))  # the text itself is nowhere needed
    assert any(study.at(scale) is not None for scale in SCALES)
    for scale in SCALES:
        if study.at(scale) is not None:
            assert planned(study, scale)


@pytest.mark.long
def test_redrawn_pages_and_figures_are_the_committed_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "papers"
    copy.mkdir()
    for path in RESULTS.glob("*.jsonl.gz"):
        shutil.copy(path, copy)
    assert main(["--redraw", "--results", str(copy)]) == 0
    score = capsys.readouterr().out.strip()
    committed = {path.name: path.read_bytes() for path in RESULTS.iterdir()}
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == committed
    assert score in " ".join((ROOT / "README.md").read_text().split())  # its first screen


def test_every_page_says_what_was_shown_and_links_to_what_there_is() -> None:
    for page in RESULTS.glob("*.md"):
        text = page.read_text()
        for target in re.findall(r"\]\(([^)#]+)", text):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


if __name__ == "__main__":
    print(table(), real_table(), sep="\n\n")
