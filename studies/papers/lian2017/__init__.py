"""Lian et al. 2017: decentralised parallel SGD against centralised SGD, on slow networks."""

from __future__ import annotations

from studies.papers import CLAIMS, described
from studies.papers.lian2017 import charts, claims, learning
from studies.papers.lian2017.studies import AXES, STUDIES
from studies.reproduction.paper import Chart, Claim

PAPER = described(
    "lian2017",
    studies=STUDIES,
    claims=(
        learning.L1,
        Claim(CLAIMS["L2"], ("noise_floor",), claims.l2),
        learning.L3A,
        Claim(CLAIMS["L3b"], ("centralised", "decentralised", "all_reduce_alone", "neighbours_alone"), claims.l3b),
        Claim(CLAIMS["L4"], ("ring_bytes", "server_bytes"), claims.l4),
        Claim(CLAIMS["L5"], ("graphs",), claims.l5),
        learning.L6,
        learning.L7,
        Claim(CLAIMS["L8"], tuple(AXES), claims.l8),
    ),
    charts=(
        Chart(
            "step_time",
            "Time of a step against nodes, at 10 Mbit/s and at 5 ms",
            ("centralised", "decentralised"),
            charts.step_time,
        ),
        Chart(
            "networks",
            "Time of a step of eight workers against the bandwidth, at 0.1 ms, and against the latency, at 1 Gbit/s",
            tuple(AXES),
            charts.networks,
        ),
        Chart(
            "levels",
            "Time of a server over that of D-PSGD at 10 Mbit/s, against the level of loss",
            (),
            learning.over_loss,
            learning.SLOW_FEW,
        ),
        Chart("consensus", "Squared consensus distance against its closed form", ("graphs",), charts.consensus),
    ),
)
