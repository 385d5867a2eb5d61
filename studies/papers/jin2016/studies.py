"""The runs by which the claims are judged, and the numbers that they have in common with them."""

from __future__ import annotations

from studies.papers.lian2017.studies import TARGET_LOSS
from studies.reproduction.paper import Study

GRADIENT_S, MESSAGE, BYTES_PER_S = 0.2, 46_758_048, 1e10 / 8
FEW, MANY = (4, 8, 16), (32, 64, 100)
LAST = 100

SMALL = ("experiment=jin2016_small",)
FULL = ("experiment=jin2016_resnet18_imagenet",)
SYNC = "{algo: sync, algo.overlap: true}, {algo: sync, algo.overlap: false}"
LONG = "{algo: easgd, algo.tau: 10}, {algo: gossip, algo.tau: 1}, {algo: gossip, algo.tau: 10}"
ALL = f"compare.contenders=[{SYNC}, {{algo: easgd, algo.tau: 1}}, {LONG}]"
PERIODS = f"compare.contenders=[{{algo: easgd, algo.tau: 1}}, {LONG}]"
MOST = f"compare.contenders=[{SYNC}, {LONG}]"

TIMING = ("engine=sim", "engine.gradients=none", "cluster=jin2016", "budget.epochs=null")
LAG = (*TIMING, "algo=sync,gossip,easgd", "nodes=8", "budget.time_s=400", "eval.every_epochs=null")
LAGGING = 3  # the slow worker's rank
SERVED = (*TIMING, f"nodes={','.join(map(str, (1, *FEW, *MANY)))}")


def _contest(name: str, nodes: tuple[int, ...], contenders: str, *overrides: str) -> Study:
    counts = f"nodes={','.join(map(str, nodes))}"
    return Study(name, (counts, f"target.loss={TARGET_LOSS}", contenders, *overrides), SMALL, FULL, tuned=True)


STUDIES = (
    _contest("few_even", FEW, ALL),
    _contest("few_uneven", FEW, ALL, "cluster.jitter=0.1", "compare.seeds=9"),
    _contest("many_uneven", MANY, MOST, "cluster.jitter=0.1", "budget.epochs=20"),
    _contest("hundred", (LAST,), MOST, "cluster.jitter=0.1", "budget.epochs=40"),
    _contest("longer", (8,), PERIODS, "budget.epochs=40"),
    Study("period", (*TIMING, "algo=easgd,gossip", "algo.tau=1,10", "nodes=8", "budget.steps=4000")),
    Study("equal", LAG),
    Study("slow", (*LAG, f"cluster.slow_nodes={{{LAGGING}: 4.0}}")),
    Study("paused", (*LAG, f"cluster.stalls=[{{node: {LAGGING}, start_s: 0.0, duration_s: inf}}]")),
    Study("served_easgd", (*SERVED, "algo=easgd", "algo.tau=1,10", "budget.steps=200")),
    Study("served_downpour", (*SERVED, "algo=downpour", "budget.steps=50")),
)
