"""Lian et al. 2017: decentralised parallel SGD against centralised SGD, on slow networks."""

from __future__ import annotations

from studies.evidence.claim import claim_over_conditions
from studies.papers import CLAIMS, described
from studies.papers.lian2017 import claims, learning
from studies.reproduction.paper import Claim

PAPER = described(
    "lian2017",
    claim_over_conditions(CLAIMS["L1"], learning.per_sample),
    Claim(CLAIMS["L2"], claims.l2),
    claim_over_conditions(CLAIMS["L3a"], learning.behind_a_server),
    Claim(CLAIMS["L3b"], claims.l3b),
    Claim(CLAIMS["L4"], claims.l4),
    Claim(CLAIMS["L5"], claims.l5),
    claim_over_conditions(CLAIMS["L6"], learning.elastic),
    claim_over_conditions(CLAIMS["L7"], learning.speed_up),
    Claim(CLAIMS["L8"], claims.l8),
    charts={"networks": claims.networks, "levels": learning.over_loss},
    shown={"levels": learning.LEVELS_SHOWN},
)
