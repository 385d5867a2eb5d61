"""Lian et al. 2017: decentralised parallel SGD against centralised SGD, on slow networks."""

from __future__ import annotations

from studies.papers import CLAIMS
from studies.papers.lian2017 import charts, claims, learning
from studies.papers.lian2017.studies import AXES, STUDIES
from studies.reproduction.paper import Assumption, Chart, Claim, Paper

PAPER = Paper(
    key="lian2017",
    order=2,
    title="Can decentralized algorithms outperform centralized algorithms?",
    reference="Lian, Zhang, Zhang, Hsieh, Zhang, Liu 2017, arXiv 1705.09056; W. Zhang for IBM Research.",
    summary=(
        "D-PSGD averages with the neighbours in a graph while it computes the next gradient. The paper finds it up to "
        "ten times as fast as centralised SGD on slow networks, at the same loss per epoch. IBM's account calls both "
        "the parameter server and all-reduce centralised, so that the sentence is two claims here, L3a and L3b."
    ),
    assumptions=(
        Assumption("model whose messages are sent", "ResNet-20, 1.08 MB", "published"),
        Assumption("networks", "10 Mbit/s; 5 ms", "published"),
        Assumption("latency at 10 Mbit/s, bandwidth at 5 ms", "1 ms, 1 Gbit/s", "ours"),
        Assumption("gradient time", "50 ms", "ours"),
        Assumption("L7 and one network of L6", "10 Gbit/s, 50 us, gradients of 30 ms, all the same", "ours"),
        Assumption("EAMSGD", "moving rate 0.9 / p, with tau = 10 also 0.5; tau = 1 and 10", "unconfirmed"),
        Assumption("graph", "ring, weights 1/3", "published"),
        Assumption("momentum", "0.9, local; Nesterov", "unconfirmed"),
        Assumption("schedule", "cosine, over the steps of the run", "ours"),
        Assumption("overlap of centralised SGD", "hidden behind the backward pass, in buckets", "ours"),
        Assumption("quadratic of L2 and L5", "500 coordinates of curvature 1, noise 1, rate 0.1", "ours"),
    ),
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
        Chart("consensus", "Squared consensus distance against its closed form", ("graphs",), charts.consensus),
    ),
)
