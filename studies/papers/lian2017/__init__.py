"""Lian et al. 2017: decentralised parallel SGD against centralised SGD, on slow networks."""

from __future__ import annotations

from studies.papers import CLAIMS, described
from studies.papers.lian2017 import claims, learning
from studies.reproduction.paper import Claim

PAPER = described(
    "lian2017",
    learning.L1,
    Claim(CLAIMS["L2"], claims.l2),
    learning.L3A,
    Claim(CLAIMS["L3b"], claims.l3b),
    Claim(CLAIMS["L4"], claims.l4),
    Claim(CLAIMS["L5"], claims.l5),
    learning.L6,
    learning.L7,
    Claim(CLAIMS["L8"], claims.l8),
    charts={
        "step_time": claims.step_time,
        "networks": claims.networks,
        "levels": learning.over_loss,
        "consensus": claims.consensus,
    },
    shown={"levels": learning.SLOW_FEW},
)
