"""The configuration file that the measurements of a cluster become."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from yaml import safe_load as yaml_of

from dsgd.cli.compose import ConfigTree
from dsgd.cluster import Cluster
from dsgd.engines.dist.calibration.cluster_file import as_cluster_yaml, disagreement, noise
from dsgd.engines.dist.calibration.measure import Jitter, MeasuredLink
from dsgd.runner.configuration import configure
from tests.support.command import call

OF = "mlp, batch 16, fp32"
ASSUMED = Cluster(gradient_s=None, bandwidth=1e9, latency_s=1e-4)


def yaml(
    jitters: Sequence[Jitter], links: dict[tuple[int, int], MeasuredLink], folder: Path, assumed: Cluster = ASSUMED
) -> Path:
    path = folder / "conf" / "cluster" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(as_cluster_yaml("two nodes, mlp\nbatch 16", OF, jitters, [0.002] * len(jitters), links, assumed))
    return path


def test_the_file_is_a_cluster_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user types it. Of 4 workers one computes half as fast, of 4 ports another one is slow."""
    monkeypatch.chdir(tmp_path)
    jitters = [Jitter(0.02 if rank == 1 else 0.01, 0.1, "lognormal", 50, rank) for rank in range(4)]
    links = {
        (i, j): MeasuredLink(1e-4, 1.2e8, 1.15e7 if 3 in (i, j) else 1.15e8) for i in range(4) for j in range(i + 1, 4)
    }
    path = yaml(jitters, links, tmp_path)
    assert path.read_text().startswith("# Measured: two nodes, mlp batch 16\n")
    line = ("--config-dir", "conf", "cluster=mine", "nodes=4", "budget.epochs=null", "budget.steps=3")
    done = call(*line, "hydra.run.dir=run")
    assert done.status == 0, done.err
    config = yaml_of((tmp_path / "run" / "config.yaml").read_text())["cluster"]
    for key, expected in {
        "gradient_s": 0.01,
        "bandwidth": 920000000.0,
        "latency_s": 0.0001,
        "node_bandwidth": {3: 92000000.0},
        "receive_overhead_s": 0.002,
        "slow_nodes": {1: 2.0},
        "jitter": 0.1,
        "jitter_distribution": "lognormal",
        "collective": "ring",
        "gradient_of": "mlp, batch 16, fp32",
    }.items():
        assert config[key] == expected, key


def test_every_key_of_the_file_has_a_comment_and_every_other_one_its_default(tmp_path: Path) -> None:
    path = yaml([Jitter(0.01, 0.0, "gamma", 5, 0)] * 2, {(0, 1): MeasuredLink(1e-4, 1e8, 1e8)}, tmp_path)
    lines = path.read_text().splitlines()
    keys = [line.split(":")[0] for line in lines[2:]]
    assert len({*keys}) == len(keys)
    assert all(" # " in line for line in lines[1:])
    assert max(map(len, lines)) <= 120
    composed = {}
    for name in ("gigabit", "mine"):
        (job,) = ConfigTree(str(tmp_path / "conf")).jobs([f"cluster={name}"], multirun=False)
        composed[name] = job.values["cluster"]
    assert composed["mine"].keys() - {"name"} == {*Cluster.__dataclass_fields__, "_target_"}
    differing = {key for key, value in composed["mine"].items() if value != composed["gigabit"][key]}
    assert differing - {"name"} <= {*keys}


def test_one_worker_has_the_network_that_was_configured(tmp_path: Path) -> None:
    jitters = [Jitter(0.01, 0.1, "gamma", 50, 0)]
    for name, assumed in (("gigabit", ASSUMED), ("ideal", replace(ASSUMED, bandwidth=math.inf, latency_s=0.0))):
        path = yaml(jitters, {}, tmp_path / name, assumed)
        (job,) = ConfigTree(str(path.parents[1])).jobs(["cluster=mine", "nodes=2"], multirun=False)
        cluster = configure(job.values).experiment.cluster
        assert (cluster.gradient_s, cluster.jitter, cluster.node_bandwidth) == (0.01, 0.1, None)
        assert (cluster.bandwidth, cluster.latency_s) == (assumed.bandwidth, assumed.latency_s)
        assert path.read_text().count("not measured, as there is one worker") == 4


def cluster_file(gradient_s: float, latency_s: float) -> str:
    links = {(0, 1): MeasuredLink(latency_s, 1e8, 1e8)}
    return as_cluster_yaml("", OF, [Jitter(gradient_s, 0.0, "gamma", 5, 0)] * 2, [0.0] * 2, links, ASSUMED)


def test_two_calibrations_disagree_by_more_than_a_quarter() -> None:
    both = "gradient_s was 1.300e-02 and is 1.000e-02, latency_s was 1.000e-05 and is 1.000e-04"
    for before, expected in (
        (cluster_file(0.01, 1e-4), None),
        (cluster_file(0.0081, 1.24e-4), None),
        (cluster_file(0.0079, 1e-4), "gradient_s was 7.900e-03 and is 1.000e-02"),
        (cluster_file(0.013, 1e-5), both),
        *((text, None) for text in ("", "[", "gradient_s: [1]", "gradient_s: null")),
    ):
        assert disagreement(before, cluster_file(0.01, 1e-4), ("gradient_s", "latency_s")) == expected, before


def test_times_that_vary_much_are_warned_of() -> None:
    """As the median of the workers has it: one of them may have been disturbed."""
    steady, noisy = (Jitter(mean_s=1e-3, cv=cv, distribution="gamma", samples=100, pauses=0) for cv in (0.05, 0.49))
    assert noise([steady, steady, noisy]) is None
    line = noise([steady, noisy, noisy])
    assert line is not None
    assert line.startswith("the gradient times vary by 49%, ")
    assert line.endswith(": calibrate again when it is idle, with more --steps")
