"""dsgd-calibrate --from-trace, of jobs whose law is known, and of traces that carry none."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from dsgd.cli.calibrate import main
from dsgd.cli.compose import ConfigTree
from dsgd.runner.configuration import configure
from tests.support.command import call
from tests.support.each_row import each_row
from tests.support.kineto_files import Bucket, Rank, Step, lockstep_job, write_job

GRADIENTS = [[100.0, 120.0, 100.0], [130.0, 110.0, 100.0], [90.0, 125.0, 112.0], [100.0, 100.0, 100.0]]
JOB = lockstep_job(GRADIENTS, [250_000, 1_000_000], 0.6, 1e-5, hosts=["a", "a", "b", "b"])
LINE = ["--from-trace", "traces", "--out", "my/cluster/mine.yaml"]


@pytest.mark.parametrize("kind", ["gloo", "nccl"])
def test_the_described_cluster_is_found_by_its_name_and_predicts_the_job(
    kind: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 120 to 130 ms of computing on the slowest rank, and 51.2 ms of all-reduces after it."""
    monkeypatch.setenv("COLUMNS", "200")
    write_job(here / "traces", [replace(rank, kind=kind) for rank in JOB])
    assert main(LINE) == 0
    printed = capsys.readouterr()
    step_ms = (130 + 125 + 112) / 3 + 2 * 0.6 + 4e-5 * 1_250_000
    for row in (rf"step +{step_ms:.1f} +{step_ms:.1f}", r"exposed communication +51\.20? +51\.20?"):
        assert re.search(rf"^{row}$", printed.out, flags=re.MULTILINE), printed.out
    assert "warning" not in printed.err
    assert printed.out.endswith((here / "my/cluster/mine.yaml").read_text())
    assert "all-reduces of a step: 5.00 MB" in printed.out
    (job,) = ConfigTree(str(here / "my")).jobs(["cluster=mine", "nodes=4"], multirun=False)
    cluster = configure(job.values).experiment.cluster
    assert cluster.replayed is not None
    assert cluster.replayed.seconds[1] == pytest.approx([0.13, 0.11, 0.1], rel=1e-3)
    assert (cluster.islands, cluster.message_bytes, cluster.time_model) == (2, 5e6, "traced job")
    assert cluster.chunks_per_message == 4
    assert cluster.wan_bandwidth == pytest.approx(8 * 1.5 / 1e-8, rel=1e-3)
    (use,) = re.findall(r"^use it: dsgd-run (.*)$", printed.err, flags=re.MULTILINE)
    ended = call(*use.split(), "hydra.run.dir=run")
    assert ended.status == 0, ended.err


def test_a_prediction_that_is_wrong_is_said_with_its_reason(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All buckets but a small one are called at the beginning of the backward pass; no equal buckets hide as much."""
    spans = [Bucket(10**6, 30, 30, 98), Bucket(10**4, 100, 100, 101)]
    steps = [Step(102 * k, 102 * k + 101, [(0, 100)], spans) for k in range(4)]
    write_job(here / "traces", [Rank(rank, 2, steps) for rank in range(2)])
    assert main(LINE) == 0
    printed = capsys.readouterr()
    assert "% from the traced one: do not trust this description" in printed.err
    assert "68 ms of communication hide behind a gradient; in the simulator, with 2 equal buckets, 33." in printed.err


def test_one_trace_makes_a_cluster_of_equal_ranks(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_job(here / "traces", JOB[:1])
    line = ["--from-trace", "traces/rank0.pt.trace.json", "--out", "mine.yaml"]
    assert main(line) == 0
    text = (here / "mine.yaml").read_text()
    assert re.search(r"^gradient_s: 0\.10666", text, flags=re.MULTILINE)
    assert "compute_trace: null" in text
    assert not (here / "mine.csv").exists()
    assert "with FOLDER/cluster/mine.yaml, where --config-dir finds it" in capsys.readouterr().err


@each_row(
    ("ranks", "rule"),
    [
        ([], "traces must have traces of the profiler (*.json, *.json.gz), got none: on_trace_ready="),
        (JOB[:3], "a folder must have the traces of all 4 ranks, got 3 without rank 3: on_trace_ready="),
        ([replace(rank, steps=[]) for rank in JOB], "it has no steps (ProfilerStep#n): call profiler.step()"),
        (
            [Rank(k, 2, [Step(0, 100, [(0, 10)], [Bucket(9, 70, 70, 80)])], "nccl") for k in range(2)],
            "host-bound: the GPU waits for the host 80% of the step, so neither gradient times nor links are fitted",
        ),
        (
            [Rank(k, 2, [Step(0, 100, [(0, 100)])]) for k in range(2)],
            "its steps have no collectives, which needs a process group: DDP, or dist.all_reduce in the step",
        ),
    ],
)  # fmt: skip
def test_traces_that_carry_no_cluster_end_in_one_line(
    ranks: list[Rank], rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With nothing written."""
    monkeypatch.chdir(tmp_path)
    write_job(tmp_path / "traces", ranks)
    assert main(LINE) == 2
    printed = capsys.readouterr()
    assert rule in printed.err
    assert printed.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["traces"]


@each_row(
    ("arguments", "rule"),
    [
        (["--from-trace", "nowhere", "--out", "mine.yaml"], "--from-trace must be a trace of the profiler, or"),
        (["--from-trace", "x.json", "--out", "mine.yaml"], "x.json: the file is cut off"),
        (["--from-trace", "x.json", "--out", "mine.csv"], "--out must be a .yaml file, got mine.csv"),
        (["--from-trace", "x.json", "--out", "mine.yaml", "nodes=2"], "keys and --config-dir must not be given with"),
        (["--from-trace", "x.json", "--out", "mine.yaml", "--steps=9"], "--steps must not be given with --from-trace"),
    ],
)  # fmt: skip
def test_wrong_arguments_end_in_one_line(
    arguments: list[str], rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.json").write_text('{"traceEvents": [')
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert rule in printed.err
    assert printed.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
