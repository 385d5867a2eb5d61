"""dsgd-compare as users type it: tuned by validation samples, measured on seeds that tuning has not seen, resumable."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from dsgd.cli.compose import ConfigTree
from dsgd.comparison.command import main, parser
from dsgd.comparison.entries import Composer
from dsgd.comparison.preparation import compare_options
from dsgd.record.reader import Run, find_runs
from tests.support.command import shell, start, wait_until

TINY = "nodes=2 budget.epochs=1 eval.every_epochs=0.25 cluster.gradient_s=0.01 target.accuracy=0.5"
LINE = f"dsgd-compare algo=sync,gossip {TINY} compare.seeds=2 compare.tune='{{optimizer.lr: [0.1, 0.4]}}'"
RESULTS = ("verdict.txt", "contest.csv", "contest.md", "contest.tex", "contest.setting.json", "contest.svg")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison that has run to its end; returns the folder above it."""
    folder = tmp_path_factory.mktemp("compared")
    result = shell(LINE, folder)
    assert result.returncode == 0, result.stderr
    (folder / "out").write_text(result.stdout)
    (folder / "err").write_text(result.stderr)
    return folder


def runs(folder: Path) -> tuple[list[Run], list[Run]]:
    """Return the runs of tuning and those that were measured."""
    found = find_runs([folder / "comparison"])
    return (
        [run for run in found if run.setting("data.evaluate") == "validation"],
        [run for run in found if run.setting("data.evaluate") == "test"],
    )


def test_it_ends_with_a_table_a_verdict_and_a_figure(compared: Path) -> None:
    out = (compared / "out").read_text()
    assert any(line.startswith("contender") for line in out.splitlines()[:5])  # headings go over several lines
    assert (compared / "comparison" / "verdict.txt").read_text().splitlines()[0] in out
    assert [out.count(f"\n{word} ") for word in ("setting:", "tuned")] == [1, 1]  # below the table
    assert all((compared / "comparison" / name).stat().st_size for name in (*RESULTS, "contest.png", "contest.pdf"))
    assert "\nin your own script" in out
    assert "sync lr=" in (compared / "err").read_text()


def test_values_are_chosen_by_validation_samples_and_measured_on_the_test_set(compared: Path) -> None:
    tuned, measured = runs(compared)
    assert {run.algorithm for run in tuned} == {run.algorithm for run in measured} == {"sync", "gossip"}
    assert {run.setting("data.validation") for run in (*tuned, *measured)} == {0.1}


def test_the_seeds_of_tuning_are_not_measured_and_all_contenders_have_the_same(compared: Path) -> None:
    tuned, measured = runs(compared)
    assert {run.setting("seed") for run in tuned}.isdisjoint({0, 1})
    for algo in ("sync", "gossip"):
        assert sorted(run.setting("seed") for run in measured if run.algorithm == algo) == [0, 1]


def test_the_chosen_value_has_neighbours_on_both_sides(compared: Path) -> None:
    tuned, measured = runs(compared)
    for algo in ("sync", "gossip"):
        (chosen,) = {run.setting("optimizer.lr") for run in measured if run.algorithm == algo}
        tried = {run.setting("optimizer.lr") for run in tuned if run.algorithm == algo}
        assert {chosen / 2, chosen, chosen * 2} <= tried


def test_what_can_neither_win_nor_work_ends_early(compared: Path) -> None:
    tuned, _ = runs(compared)
    for algo in ("sync", "gossip"):
        limits = [run.setting("budget.time_s") for run in tuned if run.algorithm == algo]
        assert limits.count(None) == 1
        assert all(limit > 0 for limit in limits if limit is not None)


def test_typed_again_it_runs_nothing_and_says_the_same(compared: Path) -> None:
    before = {name: (compared / "comparison" / name).read_bytes() for name in RESULTS}
    result = shell(LINE, compared)
    assert result.returncode == 0, result.stderr
    assert result.stdout == (compared / "out").read_text()
    assert " runs in " in (compared / "err").read_text()
    assert " runs in " not in result.stderr
    assert before == {name: (compared / "comparison" / name).read_bytes() for name in RESULTS}


def test_a_page_holds_the_verdict_the_figure_and_the_measured_runs(compared: Path) -> None:
    result = shell(f"{LINE} --html page.html", compared)
    assert result.returncode == 0, result.stderr
    page = (compared / "page.html").read_text()
    assert (compared / "comparison" / "verdict.txt").read_text().split()[0] in page
    assert "<svg" in page
    assert "4 runs, 2 configurations" in page


def test_killed_and_typed_again_it_comes_to_the_same_bytes(compared: Path, tmp_path: Path) -> None:
    process = start(LINE, tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("comparison/runs/*/summary.json"))) >= 2, process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    result = shell(LINE, tmp_path)
    assert result.returncode == 0, result.stderr
    for name in RESULTS:
        assert (tmp_path / "comparison" / name).read_bytes() == (compared / "comparison" / name).read_bytes()


def test_ctrl_c_says_that_the_same_command_goes_on(tmp_path: Path) -> None:
    process = start(LINE.replace("budget.epochs=1", "budget.epochs=200"), tmp_path)
    wait_until(lambda: bool(list(tmp_path.glob("comparison/runs/*/metrics.jsonl"))), process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert err.splitlines()[-1] == "dsgd-compare: interrupted; repeat the command to resume"
    assert "Traceback" not in err


def test_more_seeds_add_to_a_comparison_and_another_one_is_refused(compared: Path) -> None:
    setting = compared / "comparison" / "comparison.json"
    before = setting.read_bytes()
    assert "compare.seeds" not in json.loads(before)["compare"]
    result = shell(LINE.replace("algo=sync,gossip", "algo=sync,easgd"), compared)
    assert result.returncode == 2
    assert result.stderr.strip().startswith("dsgd-compare: --folder must be of this comparison or new, got comparison")
    assert "algo=sync,gossip" in result.stderr
    assert setting.read_bytes() == before


def test_other_conditions_are_measured_or_derived_and_mapped(tmp_path: Path) -> None:
    whatif = "compare.whatif='{cluster.bandwidth: [1e6, 1e9], cluster.latency_s: [1e-3]}'"
    prices = "compare.node_hour=2 compare.egress_gb=0.09 compare.verdict=front"
    line = f"dsgd-compare algo=sync,gossip {TINY} compare.seeds=1 compare.tune={{}} {whatif} {prices}"
    result = shell(line, tmp_path)
    assert result.returncode == 0, result.stderr
    rows = (tmp_path / "comparison" / "whatif.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == ["1e+06", "1e+09"]
    assert "cost to the target: nodes × hours × 2 + GB sent × 0.09" in result.stdout
    assert (tmp_path / "comparison" / "front.txt").read_text() in result.stdout
    found = find_runs([tmp_path / "comparison"])
    timed = [
        (run.algorithm, run.setting("engine.gradients")) for run in found if run.setting("cluster.latency_s") == 1e-3
    ]
    assert sorted(timed) == [("gossip", "auto")] * 2 + [("sync", "none")] * 2


# what is typed, its words separated by "; " -> how the line begins
BAD = """
compare.seeds=0 -> compare.seeds must be >= 1, got 0
compare.tune={optimizer.lr: [0.1]} -> compare.tune.optimizer.lr must be [lowest, highest], got [0.1]
compare.tune={optimizer.lrr: [0.1, 0.4]} -> optimizer.lrr is not a key of the configuration; did you mean
compare.tune={optimizer.lr: [0.1, 0.4]}; optimizer.lr=0.1 -> compare.tune must not name optimizer.lr
compare.validation=1e-9 -> data.validation
compare.contenders=[] -> compare.contenders must have at least one
compare.contenders=[{algo: sync}]; algo=gossip -> compare.contenders must not set algo, which the command
compare.contenders=[{algo: sync},{algo: sync}] -> contenders must differ, got sync and sync
compare.whatif={nodes: 8} -> compare.whatif.nodes must be a list of values, got 8
compare.whatif={optimizer.lr: [0.1]} -> compare.whatif must not name optimizer.lr, which is tuned
compare.verdict=cost -> compare.verdict=cost needs compare.node_hour or compare.egress_gb, got neither
compare.crossing=cluster.bandwidth; compare.bracket=[1e9, 1e8] -> compare.bracket must be [lowest, highest] of
compare.crossing=cluster.bandwidth; compare.bracket=[1e8, 1e9] -> compare.crossing needs two contenders, got 1: sync
algo=sync,gossip; engine=dist; compare.crossing=cluster.bandwidth; compare.bracket=[1, 9] -> compare.crossing=cluster
slurm.partition=gpu -> slurm.partition needs compare.on=slurm
seed=1,2 -> seed must be one value, got 1,2; compare.seeds
resume=auto -> resume must not be given
nodes=0 -> nodes must be >= 1, got 0
algo=sync,gossip; algo.tau=4 -> algo.tau must be a key of every contender, which it is not of algo=sync; in place of
--algo; gossip -> unrecognized arguments: --algo; keys have no dashes: algo=gossip
"""


@pytest.mark.parametrize("case", BAD.strip().splitlines())
def test_bad_input_ends_in_one_line_before_anything_is_written(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, line = case.split(" -> ")
    folder = tmp_path / "comparison"
    assert main(["--folder", str(folder), *TINY.split()[1:], *words.split("; ")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"dsgd-compare: {line}"), captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not folder.exists()


@pytest.mark.parametrize("line", ["", "--folder elsewhere"])
def test_without_contenders_it_asks_for_them(line: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    *examples, last = capsys.readouterr().err.splitlines()
    assert last == "dsgd-compare: contenders must be given, got none; --help says more"
    assert examples[0].startswith("    dsgd-compare algo=sync,gossip")
    assert list(here.iterdir()) == []


def test_flags_may_stand_between_overrides() -> None:
    typed = parser().parse_args(["algo=sync,gossip", "--folder", "c", "nodes=4", "--width", "single", "seed=1"])
    assert (typed.overrides, typed.folder, typed.width) == (["algo=sync,gossip", "nodes=4", "seed=1"], "c", "single")


FOLLOWING = r'algo.slow_nodes: "\${cluster.slow_nodes}"'


@pytest.mark.parametrize(
    ("others", "names"),
    [
        ("{algo: sync}", ["sync", "asyncdiloco tau=20"]),
        ("{algo: asyncdiloco, algo.tau: 20}", ["asyncdiloco", r"asyncdiloco slow_nodes=$\{cluster.slow_nodes\}"]),
    ],
)
def test_a_value_that_follows_the_cluster_is_named_where_it_tells_contenders_apart(
    others: str, names: list[str]
) -> None:
    contenders = f"compare.contenders=[{others}, {{algo: asyncdiloco, algo.tau: 20, {FOLLOWING}}}]"
    composer = Composer(ConfigTree(None), compare_options([contenders]))
    entries = composer.entries(["nodes=2", "cluster.slow_nodes={1: 2.0}"])
    assert [entry.name for entry in entries] == names
    assert entries[-1].values["algo"]["slow_nodes"] == {1: 2.0}
