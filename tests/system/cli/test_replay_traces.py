"""Traces in place of a description: the night is that of the job that made them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsgd.replay.replay_command import main
from tests.support.each_row import each_row
from tests.support.kineto_files import lockstep_job, write_job

GRADIENTS = [[100.0, 120.0, 100.0], [130.0, 110.0, 100.0], [90.0, 125.0, 112.0], [100.0, 100.0, 100.0]]
JOB = lockstep_job(GRADIENTS, [250_000, 1_000_000], 0.6, 1e-5)
STEP_S = 1e-3 * ((130 + 125 + 112) / 3 + 2 * 0.6 + 4e-5 * 1_250_000)


def test_a_traced_night_is_replayed_with_its_steps_beside_the_predicted_ones(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    write_job(here / "traces", JOB)
    line = "traces steps=30000 algo=sync,localsgd algo.tau=10 --json night.json --figure night.svg"
    assert main(line.split()) == 0
    printed = capsys.readouterr()
    whole = json.loads((here / "night.json").read_text())
    sync, local = whole["methods"]
    assert whole["traced"]["step_s"] == pytest.approx(STEP_S, rel=1e-3)
    assert sync["step_s"] == pytest.approx(STEP_S, rel=0.01)
    assert sync["exact"]
    # a round waits for the slowest sum of ten gradient times, and has one sum in place of ten
    assert STEP_S - 51.2e-3 - 0.02 < local["step_s"] - 5.12e-3 < STEP_S - 51.2e-3
    kinds = ("computing_s", "communication_s", "waiting_s", "host_s")
    assert sum(whole["traced"][kind] for kind in kinds) == pytest.approx(whole["traced"]["time_s"], rel=1e-6)
    assert printed.out.startswith(
        "30,000 traced steps took 1.45 h, sync predicted 1.45 h; localsgd tau=10 would have taken"
    )
    assert "sync with its buckets" in printed.out
    assert "dsgd-calibrate --from-trace TRACES --out my/cluster/mine.yaml" in printed.out
    assert printed.out.splitlines()[-1].startswith("    dsgd-compare --config-dir my cluster=mine nodes=4 ")
    text = (here / "night.svg").read_text()
    assert all(name in text for name in ("2 steps, predicted", "2 steps, traced", "rank 3", "worker 3", "traced"))
    assert sorted(path.name for path in here.iterdir()) == ["night.json", "night.svg", "traces"]


def test_without_a_number_of_steps_the_traced_ones_are_replayed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_job(here / "traces", JOB)
    assert main(["traces", "algo=sync,diloco"]) == 0
    assert capsys.readouterr().out.startswith("3 traced steps took")


def test_the_check_says_that_it_leaves_out_other_conditions(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_job(here / "traces", JOB)
    assert main(["traces", "algo=sync", "cluster.bandwidth=1e8"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "of the cluster as described, without cluster.bandwidth=1e8" in out
    assert f"step {1e3 * STEP_S:.1f} {1e3 * STEP_S:.1f}" in out


@each_row(
    ("words", "said"),
    [
        (["nowhere", "algo=sync"], "the traces must be a trace of the profiler, or a folder of traces, got nowhere"),
        (["traces", "algo=diloco"], "algo must begin with sync, the traced job's method, got diloco"),
        (["traces", "algo=sync", "nodes=8"], "nodes must not be given with traces, which have it"),
        (["traces", "algo=sync", "cluster=home"], "cluster must not be given with traces, which have it"),
        (["traces", "algo=sync", "--config-dir", "traces"], "--config-dir must not be given with traces"),
        (["cut.json", "algo=sync"], "cut.json: the file is cut off"),
    ],
)  # fmt: skip
def test_wrong_words_beside_traces_end_in_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_job(tmp_path / "traces", JOB)
    (tmp_path / "cut.json").write_text('{"traceEvents": [')
    assert main([*words, "--json", "night.json"]) == 2
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if not line.startswith("not in the trace: ")]
    assert len(lines) == 1
    assert said in lines[0]
    assert printed.out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.json", "traces"]
