"""dsgd-replay as users type it: words to methods, one line for wrong ones, and the same numbers wherever they stand."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from dsgd.comparison.contenders import Prices
from dsgd.replay.night import Night
from dsgd.replay.replay_command import main
from dsgd.replay.replay_methods import read_overrides
from dsgd.replay.replay_tables import answer, cost_of, night_table
from dsgd.replay.whatifs import bandwidth_name
from tests.support.each_row import each_row
from tests.unit.replay.test_night import described

MINE = """\
defaults: [gigabit, _self_]
gradient_s: 0.18
bandwidth: 100e9
islands: 2
wan_bandwidth: 1e9
wan_latency_s: 1e-4
slow_nodes: {2: 1.3}
message_bytes: 102.2e6
"""
WORDS = ["cluster=mine", "nodes=4", "steps=400", "algo=sync,localsgd,diloco", "algo.tau=20", "seed=3"]


def night(method: str, time_s: float, between: float | None = None) -> Night:
    return Night(method, 3000, time_s, 0.5 * time_s, 0.3 * time_s, 4e12, between, 240, True)


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "my" / "cluster").mkdir(parents=True)
    (tmp_path / "my" / "cluster" / "mine.yaml").write_text(MINE)
    return str(tmp_path / "my")


@each_row(
    ("words", "methods"),
    [
        (["algo=sync"], ["sync"]),
        (["algo=sync,diloco"], ["sync", "diloco"]),
        (["algo=sync,localsgd,diloco", "algo.tau=30"], ["sync", "localsgd tau=30", "diloco tau=30"]),
        (["algo=sync,sgp,diloco", "algo.tau=1,9"], ["sync", "sgp", "diloco tau=1", "diloco tau=9"]),
        (["algo=sync", "algo.overlap=false,true"], ["sync overlap=false", "sync overlap=true"]),
    ],
)  # fmt: skip
def test_an_option_is_one_of_each_method_that_has_it(words: list[str], methods: list[str]) -> None:
    assert read_overrides([*words, "steps=3000", "nodes=8"]) == (methods, 3000, ["nodes=8"])


def test_all_numbers_are_in_the_table_and_in_the_file(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    file, figure = tmp_path / "night.json", tmp_path / "night.svg"
    flags = ["--config-dir", mine, "--json", str(file), "--figure", str(figure)]
    flags += ["--node-hour", "2", "--egress-gb", "0.1"]
    assert main([*WORDS, *flags]) == 0
    printed = capsys.readouterr().out
    whole = json.loads(file.read_text())
    assert printed.startswith(f"{whole['answer']}\n")
    methods = {each["method"]: each for each in whole["methods"]}
    assert list(methods) == ["sync", "localsgd tau=20", "diloco tau=20"]
    sync, local, _ = methods.values()
    for each in methods.values():
        assert sum(each[f"{kind}_s"] for kind in ("computing", "communication", "waiting")) == pytest.approx(
            each["time_s"]
        )
        assert each["cost"] == pytest.approx(4 * each["time_s"] / 3600 * 2 + each["bytes_between"] / 1e9 * 0.1)
        row = next(line for line in printed.splitlines() if line.startswith(f"{each['method']}  "))
        assert f"{each['step_s'] * 1e3:.0f} ms" in row or f"{each['step_s']:.3g} s" in row
        assert f"  {each['cost']:#.4g}  " in row
    # 400 steps have 400 sums, or 19 averages, of 2 (k - 1) / k N in each island's uplink, or of the ring's
    assert sync["bytes_between"] == pytest.approx(400 / 19 * local["bytes_between"])
    assert sync["bandwidth_factor"] is None
    assert f"would have to be {local['bandwidth_factor']:.2g} times as high for the same" in whole["answer"]
    whatif = {each["condition"]: each["times_s"] for each in whole["whatif"]}
    assert list(whatif) == [
        "rank 2, 1.3 times as slow, at the median", "perfect overlap of communication",
        "twice the bandwidth between islands",
    ]  # fmt: skip
    assert all(times[name] < methods[name]["time_s"] for times in whatif.values() for name in methods)
    text = figure.read_text()
    assert all(name in text for name in ("computing", "exposed communication", "waiting", "worker 3", "diloco tau=20"))
    command = shlex.split(printed.splitlines()[-1])
    assert command[:6] == ["dsgd-compare", "--config-dir", mine, "cluster=mine", "nodes=4", "seed=3"]
    assert "compare.contenders=[{algo: sync}, {algo: localsgd, algo.tau: 20}, {algo: diloco, algo.tau: 20}]" in command


WRONG = {
    "steps must be given once, like steps=3000, got none": ["algo=sync"],
    "steps must be an integer >= 1, got 0": ["algo=sync", "steps=0"],
    "steps must be an integer >= 1, got many": ["algo=sync", "steps=many"],
    "algo must be given once, like algo=sync,diloco, got none": ["steps=10"],
    "algo must be given once, like algo=sync,diloco, got algo=sync algo=sgp": ["steps=1", "algo=sync", "algo=sgp"],
    "algo.tua must be a key of a method, which it is not of sync, sgp": ["steps=1", "algo=sync,sgp", "algo.tua=3"],
    "algo.tau must be >= 1, got 0": ["steps=10", "algo=localsgd", "algo.tau=0"],
    "algo.code must be topk, randomk, sign, qsgd or none": ["steps=10", "algo=compressed", "parameters=10"],
    "algo must be one of adpsgd,": ["steps=10", "algo=sink"],
    "budget.steps must not be given: dsgd-replay sets it": ["steps=10", "algo=sync", "budget.steps=3"],
    "--node-hour must be a price > 0, got -1": ["steps=10", "algo=sync", "--node-hour", "-1"],
    "--figure must be a .png, .svg or .pdf file": ["steps=10", "algo=sync", "--figure", "night.txt"],
    "one of model and parameters must be given, got both": ["steps=10", "algo=sync", "model=mlp", "parameters=3"],
    "the traces must be one file or one folder, got one other": ["steps=10", "algo=sync", "one", "other"],
    "gradient_s must not be given with traces, which have it": ["steps=10", "algo=sync", "traces"],
}  # fmt: skip


@each_row(("said", "words"), list(WRONG.items()))
def test_a_wrong_word_ends_in_one_line_that_names_it(
    said: str, words: Sequence[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["gradient_s=0.1", *words, "--json", "night.json"]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")
    assert list(tmp_path.iterdir()) == []


def test_gradients_without_a_time_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gradient_s=0", "parameters=10", "steps=10", "algo=sync"]) == 2
    assert "cluster.gradient_s must be > 0 in a replay, got 0" in capsys.readouterr().err


def test_a_message_without_a_size_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gradient_s=0.1", "steps=10", "algo=sync"]) == 2
    assert "model, parameters or cluster.message_bytes must be given" in capsys.readouterr().err


@each_row(
    ("times_s", "factors", "words", "said"),
    [
        (
            (33840, 24840), {"diloco tau=30": 3.1}, ("cluster.islands=2",),
            "3,000 steps take 9.4 h with sync; diloco tau=30 would take 6.9 h; the bandwidth between islands would "
            "have to be 3.1 times as high for the same.",
        ),
        (
            (33840, 24840), {"diloco tau=30": None}, (),
            "3,000 steps take 9.4 h with sync; diloco tau=30 would take 6.9 h; no bandwidth would be enough for the "
            "same.",
        ),
        (
            (60, 90), {}, (),
            "3,000 steps take 1 min with sync; no other method is faster: diloco tau=30 would take 1.5 min.",
        ),
    ],
)  # fmt: skip
def test_the_answer_is_a_sentence(
    times_s: Sequence[float], factors: dict[str, float | None], words: Sequence[str], said: str
) -> None:
    nights = [night(method, time_s) for method, time_s in zip(("sync", "diloco tau=30"), times_s, strict=True)]
    assert answer(nights, factors, bandwidth_name(described("sync", *words).cluster)) == said


def test_egress_is_paid_for_what_leaves_an_island_or_without_islands_a_node() -> None:
    prices = Prices(egress_gb=0.5)
    assert cost_of(night("sync", 10), 8, prices) == pytest.approx(2000)
    assert cost_of(night("sync", 10, 3e9), 8, prices) == pytest.approx(1.5)
    table = night_table([night("sync", 10, 3e9)], {}, 8, prices, "")
    assert "bytes that leave an island" in table.caption
    assert table.cells[0][-2:] == ["1.500", "-"]
