"""The runs that test Zhang et al. 2015."""

from __future__ import annotations

from studies.papers.zhang2015.stability import delayed_rate_bound, moving_rate_bound
from studies.reproduction.paper import Study, listed

CURVATURE_RATES = (0.5, 1.0, 1.5)  # rate times curvature, for the round robin
BELOW, ABOVE = 0.99, 1.05  # of its bound
LINE = ("engine=sim", "experiment=quadratic", "data.dim=1", "data.spread=0", "data.noise=0")
DELAYED_WORKERS = (2, 3, 4, 8, 16)
DELAYED_BELOW, DELAYED_ABOVE = 0.99, 1.01
# A vector takes a hundredth of a gradient: equal workers reach the server one after the other.
IN_TURN = ("cluster.gradient_s=1", "cluster.bandwidth=800", "cluster.message_bytes=1", "cluster.latency_s=0")


def round_robin(lr_h: float) -> Study:
    """Return EASGD on a line in round-robin order, below and above the bound of its moving rate."""
    alphas = tuple(side * moving_rate_bound(lr_h) for side in (BELOW, ABOVE))
    return Study(
        f"round_robin_{lr_h:g}",
        (
            "algo=easgd",
            "algo.variant=round_robin",
            "algo.tau=1",
            f"algo.alpha={listed(alphas)}",
            "nodes=3,4,8,16",
            f"optimizer.lr={lr_h:g}",
            *LINE,
            "budget.steps=600",
            "eval.every_steps=10",
        ),
    )


def delayed(workers: int) -> Study:
    """Return Downpour on a line in round-robin order, below and above the bound of its rate."""
    rates = tuple(side * delayed_rate_bound(workers - 1) for side in (DELAYED_BELOW, DELAYED_ABOVE))
    return Study(
        f"delayed_{workers}",
        (
            "algo=downpour",
            f"nodes={workers}",
            f"optimizer.lr={listed(rates)}",
            *LINE,
            *IN_TURN,
            "budget.steps=1000",
            "eval.every_steps=20",
        ),
    )


ROUND_ROBIN = tuple(round_robin(lr_h) for lr_h in CURVATURE_RATES)
DELAYED = tuple(delayed(workers) for workers in DELAYED_WORKERS)
STUDIES = (*ROUND_ROBIN, *DELAYED)
