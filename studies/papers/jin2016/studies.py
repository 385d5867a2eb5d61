"""The runs by which the exact claims are judged, and the numbers that they have in common with them."""

from __future__ import annotations

from studies.reproduction.paper import Study

GRADIENT_S, MESSAGE, BYTES_PER_S = 0.2, 46_758_048, 1e10 / 8
NODES, LAST = (1, 4, 8, 16, 32, 64, 100), 100

TIMING = ("engine=sim", "engine.gradients=none", "cluster=jin2016", "budget.epochs=null")
LAG = (*TIMING, "algo=sync,gossip,easgd", "nodes=8", "budget.time_s=400", "eval.every_epochs=null")
LAGGING = 3  # the slow worker's rank
SERVED = (*TIMING, f"nodes={','.join(map(str, NODES))}")

STUDIES = (
    Study("equal", LAG),
    Study("slow", (*LAG, f"cluster.slow_nodes={{{LAGGING}: 4.0}}")),
    Study("paused", (*LAG, f"cluster.stalls=[{{node: {LAGGING}, start_s: 0.0, duration_s: inf}}]")),
    Study("served_easgd", (*SERVED, "algo=easgd", "algo.tau=1,10", "budget.steps=200")),
    Study("served_downpour", (*SERVED, "algo=downpour", "budget.steps=50")),
)
