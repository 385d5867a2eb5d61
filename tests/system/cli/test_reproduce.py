"""dsgd-reproduce as users type it: what is missing is run, pages follow from the logged runs, a kill loses nothing."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from dsgd.cli.folders import folder_lock
from studies.cli import reproduce
from studies.cli.reproduce import main
from studies.reproduction import archive
from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart
from studies.reproduction.criterion import ClaimKind, Statement
from studies.reproduction.paper import Assumption, Chart, Claim, Evidence, Paper, Study
from studies.reproduction.verdict import Finding, at_least, exactly, judged
from tests.support.command import shell, start, wait_until

STEPS = ("engine=sim", "engine.gradients=none", "cluster.gradient_s=0.01", "budget.epochs=null", "budget.steps=4")


def speed_up(found: Evidence) -> Finding:
    alone, both = (found["steps"].run(nodes=nodes).final("samples") for nodes in (1, 2))
    return judged([at_least("samples, two nodes over one", both / alone, 2.0)])


def seen(found: Evidence) -> Finding:
    return judged([at_least("samples", found["longer"].runs[0].final("samples"), 2)])


def drawn(found: Evidence) -> Figure:
    points = [(float(run.nodes or 0), exactly(run.final("time_s"))) for run in found["steps"].runs]
    return chart(ChartPanel("", "nodes", "time (virtual s)", [ChartLine("sync", "sync", points)]))


def statement(id: str, kind: ClaimKind, text: str, passes: str, study: str) -> Statement:
    return Statement(id, kind, text, "Nobody", passes, {}, studies=(study,))


def paper(*words: str) -> Paper:
    return Paper(
        key="nobody2026",
        title="A paper that nobody wrote",
        reference="Nobody 2026",
        summary="Nothing.",
        assumptions=(Assumption("nodes", "2", "ours"),),
        studies=(
            Study("steps", ("algo=sync", "nodes=1,2", *STEPS, *words)),
            Study("longer", ("algo=sync,gossip", *STEPS, "budget.steps=8")),
        ),
        claims=(
            Claim(statement("N1", ClaimKind.TIME, "Two | are twice as fast", ">= 2.0", "steps"), speed_up),
            Claim(statement("N2", ClaimKind.EXACT, "There are two", ">= 2", "longer"), seen),
        ),
        charts=(Chart("time", "Time against nodes", ("steps",), drawn),),
    )  # fmt: skip


@pytest.fixture
def of_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(reproduce, "papers", lambda: [paper()])
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results" / "papers"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_redrawing_where_no_runs_are_logged_writes_nothing(tmp_path: Path) -> None:
    """As in an empty folder, whose results/papers is not that of the checkout."""
    ended = shell("dsgd-reproduce --redraw", tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "dsgd-reproduce: --redraw needs logged runs in results/papers, got none\n"
    assert not any(tmp_path.iterdir())


def test_it_runs_what_is_missing_judges_and_writes_the_pages(
    of_nobody: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["all"]) == 0
    said = capsys.readouterr()
    assert said.out == "About time: 1 claims, 1 PASS\nExact properties: 1 claims, 1 PASS\n"
    assert set(files(of_nobody)) == {"README.md", "nobody2026.md", "nobody2026.jsonl.gz", "nobody2026_time.png"}
    page = (of_nobody / "nobody2026.md").read_text()
    assert "**PASS.** Two | are twice as fast (Nobody)" in page
    assert "**PASS.** There are two (Nobody)" in page
    assert "dsgd-run -m algo=sync nodes=1,2" in page
    assert "Two \\| are twice as fast" in (of_nobody / "README.md").read_text()
    before = files(of_nobody)
    shutil.rmtree("outputs")
    assert re.search(r"^study 2 of 2: \d+ runs in ", said.err, flags=re.MULTILINE)
    assert main(["all"]) == 0  # nothing is missing, and nothing runs
    assert " runs in " not in capsys.readouterr().err
    assert files(of_nobody) == before
    assert not Path("outputs").exists()
    assert main(["--redraw"]) == 0
    assert files(of_nobody) == before


def test_one_claim_needs_its_own_runs_only(of_nobody: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nobody2026", "--claim", "N1", "--jobs", "1"]) == 0
    assert capsys.readouterr().out == (
        "N1: Two | are twice as fast\n"
        "PASS (threshold: >= 2.0): samples, two nodes over one: 2\n"
        "page: results/papers/nobody2026.md\n"
    )
    assert list(archive.read(of_nobody / "nobody2026.jsonl.gz")) == ["steps"]
    assert set(files(of_nobody)) == {"nobody2026.md", "nobody2026.jsonl.gz", "nobody2026_time.png"}


def test_a_study_that_has_changed_is_run_again(
    of_nobody: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--claim", "N1"]) == 0
    monkeypatch.setattr(reproduce, "papers", lambda: [paper("seed=1")])
    assert main(["--redraw"]) == 0
    assert "About time: 1 claims, 1 not run" in capsys.readouterr().out
    assert main(["--claim", "N1"]) == 0
    (row, *_) = archive.read(of_nobody / "nobody2026.jsonl.gz")["steps"]
    assert row["seed"] == 1


def test_a_forecast_counts_what_pipelines_miss_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a data set, and beside another command that writes the results."""
    monkeypatch.chdir(tmp_path)
    with folder_lock(tmp_path / "results" / "papers", "--results"):
        before = sorted(tmp_path.rglob("*"))
        assert main(["charles2025", "--forecast"]) == 0
        assert sorted(tmp_path.rglob("*")) == before
    lines = capsys.readouterr().out.splitlines()
    # two contenders on two tasks, three replicates: five rates and then one more on both sides, and one measured
    assert lines[0].startswith(f"D6: {2 * 2 * 3 * 6} runs, ")
    assert [line.split(":")[0] for line in lines] == ["D6", "D7", "all"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nobody2025", "PAPER must be one of all, yardstick, nobody2026, got nobody2025"),
        ("--claim X9", "--claim must be one of N1, N2, got X9"),
        ("--jobs 0", "--jobs must be >= 1, got 0"),
        ("all --anew", "--anew is withdrawn: remove the lines of a study from results/papers, and it is made again"),
        ("--redraw --forecast", "--forecast is of runs, --redraw makes none: give one of them"),
        ("slurm.partition=gpu", "slurm.partition needs --on slurm, got --on here"),
    ],
)
def test_bad_input_ends_in_one_line_before_anything_is_written(
    of_nobody: Path, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    assert main(line.split()) == 2
    assert capsys.readouterr().err == f"dsgd-reproduce: {said}\n"
    assert not any(of_nobody.parents[1].iterdir())


def test_killed_it_goes_on_where_it_was(tmp_path: Path) -> None:
    """With the installed command, on a paper of the package."""
    line = "dsgd-reproduce goyal2017 --claim A4 --jobs 1"
    process = start(line, tmp_path)
    records = tmp_path / "outputs"
    wait_until(lambda: any(records.rglob("summary.json")), process)
    process.kill()
    process.communicate()
    ended = {path: path.stat().st_mtime_ns for path in records.rglob("summary.json")}
    result = shell(line, tmp_path)
    assert result.returncode == 0, result.stderr
    assert all(path.stat().st_mtime_ns == before for path, before in ended.items())  # what had ended was not run again
    assert archive.read(tmp_path / "results" / "papers" / "goyal2017.jsonl.gz")
