"""dsgd-certify: right implementations of each interface are certified, and each planted defect is found and named."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from benchmarks.certificates import CASES
from dsgd.certificate import certificate
from dsgd.certificate.small_problems import PROBLEMS
from dsgd.cli.certify import main
from tests.support.command import shell

ROOT = Path(__file__).parents[3]
CLASSES = "tests.support.foreign_classes"
VECTOR, WEIGHT = "vector[0] of rank 0", "0.weight[0, 0] of rank 0"
# class -> (first comparison that differs, step, tensor and rank, suspect)
PLANTED = {
    "DividesTwice": ("quadratics, 2 workers", "after step 4", VECTOR, "divides twice"),
    "Sums": ("quadratics, 2 workers", "after step 4", VECTOR, "divides never"),
    "LateAverage": (
        "quadratics, 2 workers",
        "after step 4",
        VECTOR,
        "stale snapshot: of the communication before, at first the",
    ),
    "DataParallelBuffers": (
        "network, 4 workers",
        "after step 1",
        "1.running_mean[0] of rank 1",
        "averages buffers: takes rank 0",
    ),
    "FirstRoundOfOne": ("quadratics, 2 workers", "after step 1", VECTOR, "counts steps: the first round has one step"),
    "FirstRoundShort": (
        "quadratics, 2 workers",
        "after step 3",
        VECTOR,
        "counts steps: the first round is one step shorter",
    ),
    "WithoutOuterMomentum": ("quadratics, 2 workers", "after step 3", VECTOR, "forgets momentum: there is no outer"),
    "TakesMean": ("quadratics, 2 workers", "after step 3", VECTOR, "makes no outer step"),
    "OldTheta": ("quadratics, 2 workers", "after step 6", VECTOR, "stale snapshot: of theta, one round old"),
    "ForgetsMomentum": ("quadratics, 3 workers", "after step 5", VECTOR, "forgets momentum: the local optimizer's"),
    "AveragesBuffers": ("network, 4 workers", "after step 4", "1.running_mean", "averages buffers: the module's"),
    "AveragesMomentum": ("quadratics, 3 workers", "after step 5", VECTOR, "averages buffers: the local optimizer's"),
    "DecaysLate": (
        "quadratics, 3 workers",
        "after step 1",
        "matrix[0, 0] of rank 0",
        "order of decay: apart from the gradient, after",
    ),
    "DecaysEarly": (
        "quadratics, 3 workers",
        "after step 3",
        "matrix[0, 0] of rank 0",
        "order of decay: apart from the gradient, before",
    ),
    "DecaysInGradient": (
        "network, 2 workers",
        "after step 1",
        "0.weight[0, 0] of rank 0",
        "order of decay: within the gradient",
    ),
    "StaleSnapshot": ("quadratics, 2 workers", "after step 4", VECTOR, "stale snapshot: of the parameters"),
    "CountsFromOne": (
        "quadratics, 2 workers",
        "after step 4",
        VECTOR,
        "counts steps: the first round is one step longer",
    ),
    "DividesGradientTwice": ("quadratics, 2 workers", "after step 1", VECTOR, "divides twice"),
    "StaleGradient": ("quadratics, 2 workers", "after step 1", VECTOR, "stale snapshot: of the communication before"),
    "ForgetsError": ("quadratics, 2 workers", "after step 2", "rank 0", "forgets momentum: the error memory"),
    "ForgetsOuterMomentum": ("quadratics, 2 workers", "after step 6", VECTOR, "forgets momentum: the outer momentum"),
    "DividesChangeTwice": ("quadratics, 2 workers", "after step 3", VECTOR, "divides twice"),
    "NeverRefreshed": ("quadratics, 2 workers", "after step 6", VECTOR, "stale snapshot: of theta, never refreshed"),
}


def printed(name: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """Return the exit status and the lines of the command for a class."""
    status = main([f"{CLASSES}:{name}"])
    return status, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("name", "comparisons"),
    [("Averaging", 7), ("AllReduce", 6), ("TopK", 5), ("Nesterov", 7), ("WithoutCounterpart", 3)],
)
def test_a_right_implementation_is_certified(name: str, comparisons: int, capsys: pytest.CaptureFixture[str]) -> None:
    """TopK is not SGD with one worker. Without a counterpart there are the three reductions."""
    status, lines = printed(name, capsys)
    assert (status, lines[-1]) == (0, f"certified: {comparisons} comparisons, each equal to 1e-12"), lines
    assert len(lines) == comparisons + 2


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_found_where_it_begins_and_named(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the first comparison, step, tensor and rank that differ, and by the only suspect that explains all. On the
    problem that finds it and the network with four workers, without reductions: all would take three times as long."""
    problem, step, tensor, suspect = PLANTED[name]
    shown = [each for each in PROBLEMS if each.title.startswith(problem) or each is PROBLEMS[2]]
    monkeypatch.setattr(certificate, "PROBLEMS", shown)
    monkeypatch.setattr(certificate, "REDUCTIONS", ())
    status, lines = printed(name, capsys)
    assert status == 1
    first = next(line for line in lines if "differs" in line)
    assert first.startswith(problem), lines
    assert f"differs {step}: " in first, lines
    assert tensor in first, lines
    assert lines[-1].startswith(f"differs: {suspect}"), lines
    assert "; or " not in lines[-1]


def test_the_only_rank_that_differs_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """No suspect does this."""
    status, lines = printed("KeepsItsOwn", capsys)
    assert (status, lines[-1]) == (1, "differs: no suspect alone explains it")
    assert "differs after step 4: vector[0] of rank 1 is " in lines[1]
    assert "as on" not in lines[1]


def test_an_exception_of_the_class_is_shown_with_its_rank_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = printed("Raises", capsys)
    assert (status, lines[-1]) == (1, "differs")
    assert "fails: rank 1: RuntimeError: no route to the moon (foreign_classes.py:" in lines[1]


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("NoInterface", "interface must be hook, outer, wrapper, got None"),
        ("NoStep", "must have the method step, as its interface is wrapper"),
        ("NoTau", "options must have tau >= 1, the local steps of a round, got None"),
        ("WrongOption", "algo.tau must be >= 1, got 0"),
        ("OtherArguments", "must be made from (model, optimizer, tau, switch): got an unexpected keyword"),
        ("NoMethod", "algo must be one of"),
        ("NoProcessGroup", "algo=gossip needs engine=dist"),
        ("Missing", "must be importable: module 'tests.support.foreign_classes' has no attribute 'Missing'"),
        ("a_function", "must be a class, got function"),
    ],
)
def test_bad_input_ends_in_one_line(name: str, rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{CLASSES}:{name}"]) == 2
    captured = capsys.readouterr()
    assert rule in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("dsgd-certify: ")


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ([], "the following arguments are required: PACKAGE.MODULE:CLASS"),
        (["mine.Averaging"], "the class must be package.module:Class, got 'mine.Averaging'"),
        (["no_such_module:Averaging"], "must be importable: No module named 'no_such_module'"),
    ],
)
def test_a_wrong_command_line_ends_in_one_line(
    arguments: list[str], rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert rule in captured.err


def test_the_page_as_a_user_types_it(tmp_path: Path) -> None:
    """Its classes, in the folder of the user's file: all but the planted defect are certified, and the page has what is
    printed of that one. Nothing is left in the folder but what Python compiles."""
    page = (ROOT / "docs" / "howto" / "certify.md").read_text()
    (file,) = re.findall(r"^Save this as `mine\.py`:\n\n((?:    .*\n|\n)+)", page, flags=re.MULTILINE)
    (tmp_path / "mine.py").write_text(textwrap.dedent(file))
    lines = re.findall(r"^    PYTHONPATH=\. (dsgd-certify .*)$", page, flags=re.MULTILINE)
    printed = {}
    for line in lines:
        ended = shell(line, tmp_path, PYTHONPATH=str(tmp_path))
        printed[line.rpartition(":")[2]] = ended.returncode, ended.stdout.splitlines()
    assert {name: status for name, (status, _) in printed.items()} == {
        "Averaging": 0,
        "AllReduce": 0,
        "Nesterov": 0,
        "Forgetful": 1,
    }
    _, (*_, verdict) = printed["Forgetful"]
    first = next(line for line in printed["Forgetful"][1] if "differs after" in line)
    assert f"    {first}\n    {verdict}\n" in page
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.py", "__pycache__"}


def test_the_table_of_certificates_says_what_is_not_installed(tmp_path: Path) -> None:
    """And certifies the rest: here torch's own."""
    names = ("PowerSGD", "PostLocalSGDWholeRounds", "DilocoSim")
    line = [sys.executable, "benchmarks/certificates.py", "--checkouts", str(tmp_path), *names]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    _, _, powersgd, post_local, simulator = ended.stdout.splitlines()
    assert "`compressed` `rank=2` | certified: 5 comparisons" in powersgd
    assert "`localsgd` `tau=4` `switch=5` | certified: 7 comparisons" in post_local
    assert "not installed: `git clone https://github.com/MattBeton/diloco-sim`" in simulator


def test_the_committed_table_has_a_row_for_each_case() -> None:
    rows = (ROOT / "results" / "certificates" / "README.md").read_text().splitlines()
    assert [row.split(" | ")[0] for row in rows if row.startswith("| ")][1:] == [f"| {case.shown}" for case in CASES]
