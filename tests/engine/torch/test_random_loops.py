"""Random loops around `dsgd.torch.distribute` equal DistributedDataParallel or plain loops in one process, or one line
refuses them. A sample of those of `benchmarks/random_loops.py`, which has more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.user_loops.random_loops import EQUAL, REFUSED, draw
from tests.support.own_loops import in_processes

SAMPLE = range(20)


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_loop_equals_its_reference_or_is_refused_in_one_line(tmp_path: Path, nodes: int) -> None:
    numbers = [number for number in SAMPLE if draw(number).nodes == nodes]
    in_processes(tmp_path, "benchmarks.user_loops.random_loops:try_all", numbers, nodes)
    cases = [json.loads(line) for line in (tmp_path / "cases.jsonl").read_text().splitlines()]
    assert [case["number"] for case in cases] == numbers
    assert [case for case in cases if case["outcome"] not in (EQUAL, REFUSED)] == []
    assert sum(case["outcome"] == EQUAL for case in cases) >= len(cases) / 2
