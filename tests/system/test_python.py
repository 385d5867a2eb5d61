"""The functions of `import dsgd`: runs in processes of their own, and frames of records."""

from __future__ import annotations

import math
import re
import signal
import sys
from html import unescape
from importlib.metadata import version
from pathlib import Path

import pytest

import dsgd
import dsgd.python
from dsgd.comparison.contenders import score
from dsgd.crossing import RULES
from dsgd.record.reader import find_runs
from dsgd.report.table import run_rows, summary_table
from dsgd.report.table_layout import ReportTable
from tests.support.command import call, in_python, marks, summary
from tests.support.records import write_record

SMALL = ["experiment=quadratic", "algo=gossip", "nodes=3", "budget.steps=12", "engine=sim"]


def test_a_run_is_the_commands_and_the_caller_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["a program of somebody else"])
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    run = dsgd.run(SMALL, folder="it's called")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), torch.get_num_threads()) == before
    assert sys.argv == ["a program of somebody else"]
    assert call(*SMALL, "hydra.run.dir=typed").status == 0
    assert (run.status, run.algorithm, run.folder) == ("completed", "gossip", Path("it's called"))
    assert marks(run.folder) == marks(Path("typed"))
    assert summary(run.folder) == summary(Path("typed"))
    assert "engine: sim" in capfd.readouterr().err


def test_without_a_folder_the_record_is_where_the_command_puts_it(here: Path) -> None:
    run = dsgd.run(SMALL)
    assert run.folder.relative_to(here).parts[0] == "outputs"
    assert run.folder.name.endswith("_gossip_3")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algo=gossip", "algo.tau=0"], r"^algo\.tau must be >= 1, got 0$"),
        (["-m", "algo=gossip"], r"^overrides must be key=value of one run, got -m$"),
        ("algo=gossip", r"^overrides must be a list of \"key=value\", got the text 'algo=gossip'$"),
    ],
)
def test_a_bad_configuration_is_a_value_error_of_one_line(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        dsgd.run(overrides, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_ctrl_c_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    """As in a notebook, where the signal comes to the caller alone: it raises there, and the run can go on."""
    program = """
import faulthandler, os, signal, threading, time, pathlib, dsgd
faulthandler.dump_traceback_later(80, exit=True)  # says where it hangs
signal.signal(signal.SIGINT, signal.default_int_handler)  # which whoever starts the tests may ignore
metrics = pathlib.Path("run/metrics.jsonl")
def interrupt():
    while not (metrics.exists() and metrics.read_bytes()):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    dsgd.run(["algo=gossip", "nodes=4", "budget.epochs=100000", "engine=sim"], "run")
except KeyboardInterrupt:
    print("interrupted", pathlib.Path("run/checkpoint.pt").exists())
"""
    assert in_python(program, folder=tmp_path) == "interrupted True\n"


def test_importing_dsgd_imports_nothing_of_it() -> None:
    heavy = "[name for name in sys.modules if name.startswith(('dsgd.', 'torch', 'hydra'))]"
    assert in_python(f"import sys, dsgd; print({heavy}, dsgd.__version__)") == f"[] {version('dsgd')}\n"
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        dsgd.walk  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_a_row_has_keys_summary_and_derived_fields(tmp_path: Path) -> None:
    for seed, lr in ((0, 0.1), (1, 0.2)):
        write_record(tmp_path / str(seed), "easgd", seed=seed, **{"optimizer.lr": lr})
    write_record(tmp_path / "2", "sync", status="diverged", target=0.99)
    rows = run_rows(find_runs([tmp_path]))
    assert [row["folder"] for row in rows] == [str(tmp_path / name) for name in "012"]
    assert [row["outcome"] for row in rows] == ["completed", "completed", "diverged"]
    assert [(row["algo.name"], row["optimizer.lr"], row["seed"]) for row in rows] == [
        ("easgd", 0.1, 0),
        ("easgd", 0.2, 1),
        ("sync", 0.1, 0),
    ]
    assert [row["algo.tau"] for row in rows] == [4, 4, None]
    assert all(list(row) == list(rows[0]) for row in rows)
    assert rows[0]["test_error"] == pytest.approx(1 - rows[0]["test_accuracy"])
    assert rows[2]["time_to_target_s"] == math.inf


@pytest.mark.parametrize("rule", RULES)
def test_time_to_target_is_one_number_in_summary_frame_table_and_comparison(tmp_path: Path, rule: str) -> None:
    """On a noisy loss, where the three rules differ; a field of the summary has no second column."""
    noisy = [*SMALL, "data.noise=1.0", "optimizer.lr=0.3", "eval.every_steps=1", "budget.steps=60", "target.loss=0.55"]
    assert call(*noisy, f"target.crossing={rule}", f"hydra.run.dir={tmp_path / 'run'}").status == 0
    (run,) = find_runs([tmp_path / "run"])
    found = summary(run.folder)
    first, stable = found["first_crossing_s"], found["stable_crossing_s"]
    assert found["time_to_target_s"] == {"first": first, "stable": stable}.get(rule, found["time_to_target_s"])
    assert first < found["time_to_target_s"] < stable or rule != "smoothed"
    (row,) = run_rows([run])
    assert "summary.time_to_target_s" not in row
    for name in ("time_to_target_s", "first_crossing_s", "stable_crossing_s", "target_resolution_s"):
        assert row[name] == found[name]
    head, line = summary_table([run]).csv_rows
    assert float(dict(zip(head, line, strict=True))["time_to_target_s"]) == found["time_to_target_s"]
    assert score(run) == found["time_to_target_s"]


def test_frames_hold_the_rows(tmp_path: Path) -> None:
    write_record(tmp_path / "a", marks=3)
    write_record(tmp_path / "b", marks=2)
    rows = run_rows(find_runs([tmp_path]))
    frame = dsgd.load_runs(tmp_path)
    assert list(frame.columns) == list(rows[0])
    for name in ("folder", "nodes", "test_accuracy", "time_to_target_s"):
        assert list(frame[name]) == [row[name] for row in rows]
    assert list(dsgd.load_marks([tmp_path / "a", tmp_path / "b"])["epoch"]) == [0, 0.5, 1, 0, 0.5]


def test_without_pandas_a_frame_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"^pandas must be installed .*: pip install pandas$"):
        dsgd.load_runs(tmp_path)


def test_a_comparison_is_its_verdict_and_table(tmp_path: Path) -> None:
    """As text at a prompt, as a table in a notebook, where no name has HTML of its own."""
    names = ("gossip <b>tau=10</b>", "a | `b` \\| c")
    table = ReportTable(["run", "time (s)"], frozenset({"run"}), [[name, 2.5] for name in names], [], "<note>")
    table.write(tmp_path / "contest")
    found = dsgd.python.Compared(tmp_path, "gossip is <sooner>.", (tmp_path / "contest.md").read_text().strip(), [])
    assert repr(found).startswith("gossip is <sooner>.\n\n| run | time (s) |\n")
    html = found._repr_html_()
    assert html.startswith(
        "<p>gossip is &lt;sooner&gt;.</p><table><tr><th>run</th><th>time (s)</th></tr><tr><td>gossip "
    )
    cells = [unescape(text) for text in re.findall("<td>(.*?)</td>", html)]
    assert cells == [names[0], "2.500", names[1], "2.500"]
    assert html.endswith("</table><p>&lt;note&gt;</p>")
