"""dsgd-calibrate as users type it."""

from __future__ import annotations

import re
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


def test_one_worker_measures_its_gradients_and_says_where_it_disagrees_with_before(tmp_path: Path) -> None:
    line = "dsgd-calibrate --out my/cluster/mine.yaml --steps 5 nodes=1 cluster=lian2017_5ms batch_size=4"
    ended = shell(line, tmp_path)
    assert ended.returncode == 0, ended.stderr
    (job,) = ConfigTree(str(tmp_path / "my")).jobs(["cluster=mine"], multirun=False)
    cluster = configure(job.values).experiment.cluster
    assert cluster.gradient_s
    assert (cluster.bandwidth, cluster.latency_s) == (1e9, 5e-3)
    assert cluster.gradient_of == "mlp, batch 4, fp32"
    assert "one worker has no network: bandwidth and latency are taken from cluster=lian2017_5ms\n" in ended.stderr
    assert "disagrees" not in ended.stderr

    path = tmp_path / "my/cluster/mine.yaml"
    path.write_text(re.sub("gradient_s: .*", "gradient_s: 1.234e+02", path.read_text()))
    again = shell(line, tmp_path)
    warnings = [text for text in again.stderr.splitlines() if "disagrees" in text]
    assert len(warnings) == 1
    told = "warning: my/cluster/mine.yaml disagrees with the previous calibration: gradient_s was 1.234e+02 and is "
    assert warnings[0].startswith(told)


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
    arguments: list[str],
    rule: str,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is measured or written."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert rule in captured.err
    assert captured.err.count("\n") == 1
    assert list(here.iterdir()) == []
