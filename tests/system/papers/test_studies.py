"""Every run of every study can be planned, at every scale; pages and figures follow from the logged runs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from dsgd.cli.compare import compare_options
from dsgd.cli.entries import FOLDERS, Composer
from dsgd.runner.plan import plan_run
from studies.cli.reproduce import main
from studies.papers import papers
from studies.papers.real.tasks import TASKS
from studies.reproduction.paper import REAL, SCALES, SMALL, Paper, Study
from tests.support.simulate import tree
from tests.system.data.test_fashion_mnist import need_fashion_mnist

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results" / "papers"
PAPERS = papers(SMALL)
BOOK_BYTES = 4_404_412  # of the King James Bible as docs/explanation/papers.md gets it
LIKE = {"imagenet": 64, "cifar10": 32}  # pixels, of generated images in the place of the published ones
AT_REAL_SCALE = papers(REAL)


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
    if study.tuned:
        own = [word for word in words if word.startswith("compare.")]
        composer = Composer(tree(), compare_options(own))
        entries = composer.entries([word for word in words if word not in own])
        jobs = [job for entry in entries for job in composer.measuring(entry, ())] if not entries[0].axes else [
            job
            for entry in entries
            for job in composer.measuring(entry, tuple(axis.grid[0] for axis in entry.axes))
        ]  # fmt: skip
    else:
        jobs = tree().jobs([*words, *FOLDERS], multirun=True)
    if scale == REAL and not study.name.endswith(TASKS[0]):
        jobs = jobs[:1]  # of the other task, whose files are read, all other points are alike
    for job in jobs:
        plan_run(job.values, job.overrides)
    return len(jobs)


@pytest.mark.parametrize("paper", [*PAPERS, *AT_REAL_SCALE], ids=lambda paper: paper.key)
def test_every_point_of_a_study_resolves(paper: Paper, here: Path) -> None:
    if paper in AT_REAL_SCALE:
        need_fashion_mnist()  # one of its tasks
    (here / "kjv.txt").write_bytes(bytes(BOOK_BYTES))  # the text itself is nowhere needed
    for study in paper.studies:
        if study.by is None:
            assert any(study.at(scale) is not None for scale in SCALES)
            for scale in SCALES:
                assert study.at(scale) is None or planned(study, scale)


def test_redrawn_pages_and_figures_are_the_committed_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "papers"
    copy.mkdir()
    for path in (*RESULTS.glob("*.jsonl.gz"), *RESULTS.glob("*.csv")):
        shutil.copy(path, copy)
    assert main(["--redraw", "--results", str(copy)]) == 0
    score = capsys.readouterr().out.strip()
    committed = {path.name: path.read_bytes() for path in RESULTS.iterdir()}
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == committed
    assert score in " ".join((ROOT / "README.md").read_text().split())  # its first screen
