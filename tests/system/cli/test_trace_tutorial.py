"""The tutorial on traces: its script really trains with gloo under the profiler, and its traces are described."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from dsgd.cli.compose import ConfigTree
from dsgd.runner.configuration import configure
from dsgd.traces.traced_job import read_job
from tests.support.command import shell

PAGE = Path(__file__).parents[3] / "docs" / "tutorials" / "traces.md"
PARAMETERS = 256 * 512 + 512 + 512 * 1024 + 1024 + 1024 * 10 + 10  # of the tutorial's model


@pytest.mark.parametrize("nodes", [4])
def test_the_tutorial_works(nodes: int, tmp_path: Path) -> None:
    page = PAGE.read_text()
    (file,) = re.findall(r"^Save this as `train\.py`:\n\n((?:    .*\n|\n)+)", page, flags=re.MULTILINE)
    (tmp_path / "train.py").write_text(textwrap.dedent(file))
    lines = re.findall(r"^    (torchrun .*|dsgd-calibrate .*traces .*|dsgd-replay .*)$", page, flags=re.MULTILINE)
    start, describe, replay = lines
    ended = shell(start.replace("=4", f"={nodes}"), tmp_path)
    assert ended.returncode == 0, ended.stderr
    ended = shell(describe, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert f"all-reduces of a step: {4 * PARAMETERS / 1e6:.2f} MB" in ended.stdout
    assert re.search(r"^step +\d\S* +\d\S*$", ended.stdout, flags=re.MULTILINE)

    ended = shell(replay, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("3,000 traced steps took")
    assert (tmp_path / "night.png").exists()

    job = read_job(str(tmp_path / "traces"))
    assert (job.world_size, len(job.traces), len(job.steps)) == (nodes, nodes, 20)
    assert all(joint.ranks == tuple(range(nodes)) and len(joint.parts) == nodes for joint in job.collectives)
    for trace in job.traces:
        for step in job.steps_of(trace):
            assert [each.kind for each in step.collectives] == ["all_reduce"] * 2
            assert all(each.launched_s is not None and each.launched_s <= each.begin_s for each in step.collectives)
            assert step.computing_s > 0
            assert step.exposed_s >= 0
            assert step.exposed_s + step.hidden_s > 0
            assert step.computing_s + step.exposed_s + step.host_s <= step.seconds + 1e-9
            if trace.rank == 3:  # which sleeps outside of operators and communication
                assert step.host_s >= 0.05

    (composed,) = ConfigTree(str(tmp_path / "my")).jobs(["cluster=mine", f"nodes={nodes}"], multirun=False)
    cluster = configure(composed.values).experiment.cluster
    assert cluster.message_bytes == 4 * PARAMETERS
    assert cluster.replayed is not None
    assert [len(seconds) for seconds in cluster.replayed.seconds] == [20] * nodes
