"""Goyal et al. 2017: ImageNet in an hour by synchronous SGD with large batches."""

from __future__ import annotations

from dsgd.reproduction.logged import finals
from dsgd.reproduction.paper import Assumption, Claim, Evidence, Paper, Study
from dsgd.reproduction.verdict import Finding, at_least, judged

SERVERS = 32
GRADIENT_S = 0.27  # a P100's time for 32 images, ours


def a4(found: Evidence) -> Finding:
    """Judge the scaling efficiency of the all-reduce over 32 servers."""
    (time_s,) = finals(found["scaling"].where(nodes=SERVERS), "time_s")
    (alone_s,) = finals(found["scaling"].where(nodes=1), "time_s")
    return judged([at_least(f"efficiency, {SERVERS} servers", alone_s / time_s, 0.85)])


PAPER = Paper(
    key="goyal2017",
    order=6,
    title="Accurate, large minibatch SGD: training ImageNet in 1 hour",
    reference="Goyal et al. 2017, arXiv 1706.02677",
    summary="Synchronous SGD.",
    assumptions=(Assumption("network", "50 Gbit/s", "unconfirmed"),),
    studies=(
        Study(
            "scaling",
            (
                "algo=sync",
                "nodes=1,32",
                "engine.gradients=none",
                f"cluster.gradient_s={GRADIENT_S}",
                "cluster.bandwidth=5e10",
                "cluster.message_bytes=102228128",
                "budget.steps=100",
                "budget.epochs=null",
            ),
        ),
    ),
    claims=(
        Claim(
            "A4", "About 90 % scaling efficiency from 8 to 256 GPUs", "Goyal", "efficiency >= 0.85", ("scaling",), a4
        ),
    ),
)
