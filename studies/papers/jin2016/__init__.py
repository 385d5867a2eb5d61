"""Jin, Yuan, Iandola, Keutzer 2016: how to scale distributed deep learning?"""

from __future__ import annotations

from studies.papers import CLAIMS
from studies.papers.jin2016 import charts, claims, learning
from studies.papers.jin2016.studies import STUDIES
from studies.reproduction.paper import Assumption, Chart, Claim, Paper

PAPER = Paper(
    key="jin2016",
    order=1,
    title="How to scale distributed deep learning?",
    reference="Jin, Yuan, Iandola, Keutzer 2016, arXiv 1611.04581.",
    summary=(
        "The paper compares synchronous all-reduce SGD with elastic averaging and gossiping SGD, and finds the "
        "asynchronous methods faster up to about 32 nodes, and all-reduce better towards 100. Here times are the steps "
        "that an MLP needs, times the seconds that ResNet-18 would take for each."
    ),
    assumptions=(
        Assumption("messages", "ResNet-18, 46.8 MB", "published"),
        Assumption("network", "10 Gbit/s, 50 us", "ours"),
        Assumption("gradient time", "0.2 s, as of 32 images; jitter of 0, 10, 30 and 100 %, log-normal", "ours"),
        Assumption("periods", "tau = 1 and 10; on more than 16 nodes 10", "published"),
        Assumption("form of gossip", "pull and push; on more than 16 nodes the sooner one, pull", "unconfirmed"),
        Assumption(
            "moving rate of EASGD", "0.9 / p, and 0.5; on more than 16 nodes the sooner one, 0.5", "unconfirmed"
        ),
        Assumption("momentum", "Nesterov 0.9, local", "published"),
        Assumption("schedule", "cosine, over the steps of the run", "ours"),
    ),
    studies=STUDIES,
    claims=(
        *learning.CLAIMS_ABOUT_LEARNING,
        Claim(CLAIMS["J5"], ("equal", "slow", "paused"), claims.j5),
        Claim(CLAIMS["J6"], ("served_easgd", "served_downpour"), claims.j6),
    ),
    charts=(
        Chart(
            "steps",
            "Steps of each worker to the target, against the number of nodes",
            (),
            learning.steps_over_nodes,
            learning.SHOWN,
        ),
        Chart(
            "levels",
            "Steps over those of all-reduce, against the level of loss",
            (),
            learning.ratio_over_levels,
        ),
        Chart("profile", "Share of the settings of J1 and J3 within a factor of the soonest", (), learning.profile),
        Chart("server", "Throughput behind one server", ("served_easgd", "served_downpour"), charts.server_throughput),
    ),
)
