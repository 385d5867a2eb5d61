"""The manifest: what was written stays, what was cut off does not count, and those who write take turns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsgd.cli.compose import composed
from dsgd.sweep.manifest import MANIFEST, Point, identity, locked_sweep, point_of, read_sweep

PATIENCE_S = 60


def values(*overrides: str) -> dict[str, Any]:
    return composed(overrides)


def point(seed: int) -> Point:
    return point_of(values("algo=gossip", "nodes=4", f"seed={seed}"), ["algo=gossip", "nodes=4", f"seed={seed}"], None)


@pytest.fixture(scope="module")
def points() -> list[Point]:
    return [point(seed) for seed in range(3)]


def submitted(folder: Path, points: list[Point]) -> None:
    with locked_sweep(folder) as writer:
        writer.points(points)
        writer.submitting("first", points, ["slurm.partition=low"])
        writer.submitted("first", "12")


def test_what_was_written_is_read(points: list[Point], tmp_path: Path) -> None:
    submitted(tmp_path, points)
    sweep = read_sweep(tmp_path)
    assert list(sweep.points.values()) == points
    assert sweep.tasks == {each.id: f"12_{index}" for index, each in enumerate(points)}
    assert set(sweep.slurm.values()) == {("slurm.partition=low",)}
    assert sweep.submitting == {}


@pytest.mark.parametrize("cut", [1, 40])
def test_a_torn_last_line_does_not_count_and_is_gone_after_the_next(
    cut: int, points: list[Point], tmp_path: Path
) -> None:
    """The end of the submission is missing: it is known to have begun."""
    submitted(tmp_path, points)
    path = tmp_path / MANIFEST
    path.write_bytes(path.read_bytes()[:-cut])
    torn = read_sweep(tmp_path)
    assert torn.submitting == {"first": [each.id for each in points]}
    assert torn.tasks == {}
    with locked_sweep(tmp_path) as writer:
        writer.submitted("first", "13")
    assert read_sweep(tmp_path).tasks == {each.id: f"13_{index}" for index, each in enumerate(points)}
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()][-2:] == ["submitting", "submitted"]


ADD = """
import sys
from pathlib import Path
from dsgd.sweep.manifest import locked_sweep
for _ in range(40):
    with locked_sweep(Path(sys.argv[1])) as writer:
        count = len((Path(sys.argv[1]) / "manifest.jsonl").read_bytes().splitlines())
        writer.add({"event": "cancelled", "points": [str(count)]})
"""


def test_writers_take_turns(tmp_path: Path) -> None:
    """Each adds the number of lines that it has seen: under the lock no number comes twice."""
    with locked_sweep(tmp_path) as writer:
        writer.add({"event": "cancelled", "points": ["0"]})
    started = [subprocess.Popen([sys.executable, "-c", ADD, str(tmp_path)]) for _ in range(3)]
    assert [process.wait(PATIENCE_S) for process in started] == [0, 0, 0]
    assert read_sweep(tmp_path).cancelled == {str(number) for number in range(1 + 3 * 40)}


# Who is who


def test_what_does_not_change_the_result_makes_no_new_point() -> None:
    for engine, *same in (
        ("engine=auto", "trace=true"),
        ("engine=auto", "optimizer.lr=0.1", "optimizer.momentum=0.0"),
        ("engine=sim", "engine.threads=3"),
        ("engine=dist", "engine.checkpoint_every_s=7"),
    ):
        fixed = [engine, "optimizer.lr=0.10", "optimizer.momentum=0"]
        assert identity(values(*fixed, *same)) == identity(values(*fixed)), same


def test_what_changes_the_result_makes_a_new_point() -> None:
    for other in ("seed=1", "algo=gossip", "optimizer.lr=0.3", "engine=sim"):
        assert identity(values(other)) != identity(values())
    without = ["engine=sim", "engine.gradients=none"]
    assert identity(values(*without)) != identity(values(without[0]))


def test_a_point_is_the_same_in_its_record() -> None:
    """JSON and YAML make texts of numbers that are keys, and lists of tuples."""
    config = values("cluster.slow_nodes={3: 2.0}", "model.hidden=[4,5]")
    assert identity(json.loads(json.dumps(config))) == identity(config)
