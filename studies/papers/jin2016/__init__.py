"""Jin, Yuan, Iandola, Keutzer 2016: how to scale distributed deep learning?"""

from __future__ import annotations

from studies.papers import CLAIMS, described
from studies.papers.jin2016 import charts, claims, learning
from studies.reproduction.paper import Claim

PAPER = described(
    "jin2016",
    *learning.CLAIMS_ABOUT_LEARNING,
    Claim(CLAIMS["J5"], claims.j5),
    Claim(CLAIMS["J6"], claims.j6),
    charts={
        "steps": charts.steps_over_nodes,
        "levels": charts.ratio_over_levels,
        "profile": charts.profile,
        "server": claims.server_throughput,
    },
    shown={"steps": charts.STEPS_SHOWN, "levels": charts.LEVELS_SHOWN, "profile": charts.PROFILE_SHOWN},
)
