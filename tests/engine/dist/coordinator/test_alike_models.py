"""Real worker processes hand in a mark: of equal vectors in lock-step, the coordinator receives one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dsgd.engines.dist.worker.process import OFFERED_BYTES
from dsgd.problem.problem import build_problem
from tests.support.cases import prepared
from tests.support.last_mark import STEPS, last_mark

WORKERS = 4
LARGE = ("nodes=4", "model=mlp", "model.hidden=[512]", f"budget.steps={STEPS}", "budget.epochs=null")


@pytest.mark.parametrize("algo", ["sync", "dpsgd"])
def test_equal_vectors_come_once_and_every_snapshot_has_them(algo: str, tmp_path: Path) -> None:
    experiment = prepared(f"algo={algo}", *LARGE)
    problem = build_problem(experiment)
    assert problem.start.nbytes > OFFERED_BYTES
    xs = [problem.start, problem.start + 1, problem.start, problem.start]
    with last_mark(experiment, problem, lambda rank: xs[rank], tmp_path) as mark:
        received = [mark.snapshots[rank].vectors["x"] for rank in range(WORKERS)]
        assert all(torch.equal(vector, x) for vector, x in zip(received, xs, strict=True))
        assert len({id(vector) for vector in received}) == 2
        assert mark.nbytes == 2 * problem.start.nbytes


def test_what_exceeds_the_limit_comes_whole_from_files(tmp_path: Path) -> None:
    experiment = prepared("algo=gossip", *LARGE, "model.hidden=[8192]")  # 2.5 MB
    problem = build_problem(experiment)
    with last_mark(experiment, problem, lambda rank: problem.start + rank, tmp_path, limit=0) as mark:
        for rank, snapshot in mark.snapshots.items():
            assert torch.equal(snapshot.vectors["x"], problem.start + rank)
    assert list(tmp_path.iterdir()) == []
