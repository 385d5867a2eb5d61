"""What docs/explanation/papers.md concludes: its numbers are those of the logged runs."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import geometric_mean

import pytest

from studies.evidence.contrast import first_replicates, steps
from studies.evidence.levels import over_levels
from studies.evidence.pipeline import Pipelines
from studies.evidence.tasks import IMAGES, TARGETS
from studies.papers.jin2016.charts import CURVED
from studies.papers.jin2016.contenders import ALL_REDUCE, FEW, LAST, cell_of
from studies.papers.lian2017.learning import behind_a_server

ROOT = Path(__file__).parents[3]
TEXT = " ".join((ROOT / "docs/explanation/papers.md").read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def archive() -> Pipelines:
    return Pipelines.read(ROOT / "results/papers")


@pytest.mark.parametrize("name", [ALL_REDUCE, "easgd tau=10 alpha=0.5"])
@pytest.mark.parametrize("task", IMAGES)
def test_steps_that_more_workers_save(archive: Pipelines, task: str, name: str) -> None:
    few, many = (
        geometric_mean(first_replicates(steps(cell_of(task, nodes, name), TARGETS[task]), archive))
        for nodes in (FEW[0], LAST)
    )
    assert f"from {few:,.0f} to {many:,.0f}" in TEXT


@pytest.mark.parametrize("tau", [1, 10])
def test_steps_of_gossip_over_those_of_all_reduce_at_every_loss(archive: Pipelines, tau: int) -> None:
    gossip, exact = (cell_of("shapes", CURVED, name) for name in (f"gossip mode=pull tau={tau}", ALL_REDUCE))
    ratios = [ratio.median for _, ratio in over_levels(gossip, exact, archive)]
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times" in TEXT


@pytest.mark.parametrize("nodes", FEW)
def test_times_as_fast_as_a_server(archive: Pipelines, nodes: int) -> None:
    shapes, fashion = (behind_a_server(task, [nodes])[f"{nodes} nodes"][0].value(archive).median for task in IMAGES)
    assert re.search(rf"{shapes:.1f} and {fashion:.1f} (times )?on {nodes}\b", TEXT)
