"""dsgd-calibrate as users type it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsgd.cli.calibrate import main
from dsgd.cli.compose import ConfigTree
from dsgd.runner.configuration import configure
from tests.support.command import shell


def test_it_writes_a_cluster_that_the_simulator_takes(tmp_path: Path) -> None:
    """Three real processes and their links; the file is found by its name and simulated."""
    line = "dsgd-calibrate --out my/cluster/mine.yaml --steps 5 --link-s 0.02 nodes=3 experiment=quadratic"
    ended = shell(line, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == (tmp_path / "my/cluster/mine.yaml").read_text()
    assert "3 workers" in ended.stdout
    assert "use it: dsgd-run --config-dir my cluster=mine" in ended.stderr
    (job,) = ConfigTree(str(tmp_path / "my")).jobs(["cluster=mine", "nodes=3"], multirun=False)
    cluster = configure(job.values).experiment.cluster
    assert cluster.gradient_s is not None
    assert 0 < cluster.gradient_s < 10
    assert cluster.gradient_of == "vector, batch 1, fp64"
    assert 0 < cluster.latency_s < 10
    assert cluster.bandwidth > 1e6
    assert 0 <= cluster.receive_overhead_s < 10
    assert [path.name for path in tmp_path.iterdir()] == ["my"]


def test_a_worker_that_cannot_go_on_is_named_with_its_reason(tmp_path: Path) -> None:
    """And not what others notice of it, who wait for it; they do not wait long."""
    data = "data._target_=tests.support.slow_gradients.FailingReads"
    line = f"dsgd-calibrate --out mine.yaml nodes=3 experiment=quadratic {data}"
    ended = shell(line, tmp_path, PYTHONPATH=str(Path(__file__).parents[3]))
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "calibration: worker 1: OSError: the disk is gone"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["--out", "mine.txt"], "--out must be a .yaml file, got mine.txt"),
        (["--out", "mine.yaml", "--steps", "1"], "--steps must be >= 2 and --link-s > 0, got 1 and 1.0"),
        (["--out", "mine.yaml", "--link-s", "10MB"], "argument --link-s: invalid seconds value: '10MB'"),
        (["nodes=2"], "the following arguments are required: --out"),
    ],
)
def test_bad_input_ends_in_one_line(
    arguments: list[str], rule: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is measured or written."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert rule in captured.err
    assert captured.err.count("\n") == 1
    assert list(here.iterdir()) == []
