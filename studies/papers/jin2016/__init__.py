"""Jin, Yuan, Iandola, Keutzer 2016: how to scale distributed deep learning?"""

from __future__ import annotations

from studies.papers import CLAIMS, described
from studies.papers.jin2016 import charts, claims, learning
from studies.papers.jin2016.studies import STUDIES
from studies.reproduction.paper import Chart, Claim

PAPER = described(
    "jin2016",
    studies=STUDIES,
    claims=(
        *learning.CLAIMS_ABOUT_LEARNING,
        Claim(CLAIMS["J5"], ("equal", "slow", "paused"), claims.j5),
        Claim(CLAIMS["J6"], ("served_easgd", "served_downpour"), claims.j6),
    ),
    charts=(
        Chart(
            "steps",
            "Steps of each worker to the target against the number of nodes, by the batch of a worker",
            (),
            charts.steps_over_nodes,
            learning.SHOWN,
        ),
        Chart(
            "levels",
            "Steps over those of all-reduce, against the level of loss",
            (),
            charts.ratio_over_levels,
        ),
        Chart("profile", "Share of the settings of J1 and J3 within a factor of the soonest", (), charts.profile),
        Chart("server", "Throughput behind one server", ("served_easgd", "served_downpour"), charts.server_throughput),
    ),
)
