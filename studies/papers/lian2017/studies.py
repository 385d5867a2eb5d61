"""The runs by which the claims are judged, and the numbers that they have in common with them."""

from __future__ import annotations

import numpy as np

from dsgd.record.reader import Run
from studies.reproduction.paper import Study, listed

NETWORKS = {"lian2017_10mbit": (1e-3, 1e7 / 8), "lian2017_5ms": (5e-3, 1e9 / 8)}  # latency in s, bytes/s
NAMES = {"lian2017_10mbit": "10 Mbit/s", "lian2017_5ms": "5 ms"}
MESSAGE = 1_078_888  # bytes: 269,722 parameters of ResNet-20
NODES = (4, 8, 16, 32, 100)
COLLECTIVES = {"star": "a server", "ring": "a ring all-reduce", "best": "the best all-reduce"}
# of L8, the fastest network first: bit/s with a latency of 0.1 ms, s with 1 Gbit/s
BANDWIDTHS, LATENCIES = (1e10, 3e9, 1e9, 3e8, 1e8, 3e7, 1e7), (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
AXES = {"bandwidth": ("cluster.bandwidth", BANDWIDTHS), "latency": ("cluster.latency_s", LATENCIES)}

TIMING = ("engine=sim", "engine.gradients=none", "cluster=lian2017_10mbit,lian2017_5ms", "budget.epochs=null")
GRID = (*TIMING, "budget.steps=50", f"nodes={','.join(map(str, NODES))}")
EIGHT = ("engine=sim", "engine.gradients=none", "cluster=lian2017_5ms", "budget.epochs=null", "budget.steps=50")
EIGHT += ("nodes=8", "algo=dpsgd,sync", f"cluster.collective={','.join(COLLECTIVES)}")
LR, NOISE, DIM = 0.1, 1.0, 500  # of the quadratic; its curvature is 1 in every coordinate
QUADRATIC = ("engine=sim", "experiment=quadratic", "algo=dpsgd", f"optimizer.lr={LR}", "optimizer.momentum=0")
QUADRATIC += ("optimizer.nesterov=false", f"data.dim={DIM}", "data.condition=1", "data.spread=0", f"data.noise={NOISE}")
QUADRATIC += ("budget.steps=2000", "eval.every_steps=40", "seed=0,1,2")
BURN_IN = 400  # steps; the slowest mode of the mean decays by 0.9 a step
TURN = 2 * np.pi * np.arange(16) / 16
SQUARE = 2 * np.cos(np.pi / 2 * np.arange(4))
EIGENVALUES = {  # of the mixing matrices of 16 nodes
    "ring": (1 + 2 * np.cos(TURN)) / 3,
    "torus": ((1 + SQUARE[:, None] + SQUARE) / 5).ravel(),
    "hypercube": np.repeat(1 - 2 * np.arange(5) / 5, [1, 4, 6, 4, 1]),
    "complete": np.array([0.0] * 15 + [1.0]),
}

STUDIES = (
    Study("bandwidth", (*EIGHT, "cluster.latency_s=1e-4", f"cluster.bandwidth={listed(BANDWIDTHS)}")),
    Study("latency", (*EIGHT, f"cluster.latency_s={listed(LATENCIES)}")),
    Study("noise_floor", (*QUADRATIC, "nodes=2,4,8,16,32")),
    Study("graphs", (*QUADRATIC, "nodes=16", "topology=ring,torus,hypercube,complete")),
    Study("centralised", ("algo=sync", *GRID, "cluster.collective=star,ring,best")),
    Study("decentralised", ("algo=dpsgd", *GRID)),
    Study(
        "all_reduce_alone",
        ("algo=sync", "algo.overlap=false", *GRID, "cluster.gradient_s=1e-9", "cluster.collective=ring,best"),
    ),
    Study("neighbours_alone", ("algo=dpsgd", *GRID, "cluster.gradient_s=1e-9")),
    Study("ring_bytes", ("algo=dpsgd", *GRID, "cluster=lian2017_10mbit")),
    Study(
        "server_bytes",
        (
            "algo=sync,downpour",
            *TIMING,
            "cluster=lian2017_10mbit",
            "nodes=4,16",
            "budget.steps=2000",
            "cluster.collective=star",
        ),
    ),
)


def stationary(run: Run, field: str, power: int = 1) -> float:
    """Return the mean of a field, or of a power of it, over the marks after the burn-in."""
    per_step = run.setting("nodes") * run.setting("batch_size")
    return float(np.mean([mark[field] ** power for mark in run.metrics if mark["samples"] > BURN_IN * per_step]))


def consensus_distance(eigenvalues: np.ndarray) -> float:
    """Return the squared consensus distance per coordinate in the long run, gamma^2 sigma^2 / p times the sum of
    1 / (1 - (lambda_k - gamma)^2) over all eigenvalues of the mixing matrix but the largest, for curvature 1."""
    others = np.sort(eigenvalues)[:-1]
    return float(LR**2 * NOISE**2 / len(eigenvalues) * np.sum(1 / (1 - (others - LR) ** 2)))
