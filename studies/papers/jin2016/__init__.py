"""Jin, Yuan, Iandola, Keutzer 2016: how to scale distributed deep learning?"""

from __future__ import annotations

from studies.papers import CLAIMS
from studies.papers.jin2016 import charts, claims
from studies.papers.jin2016.studies import STUDIES
from studies.reproduction.paper import Assumption, Chart, Claim, Paper

PAPER = Paper(
    key="jin2016",
    order=1,
    title="How to scale distributed deep learning?",
    reference="Jin, Yuan, Iandola, Keutzer 2016, arXiv 1611.04581.",
    summary=(
        "The paper compares synchronous all-reduce SGD with elastic averaging and gossiping SGD, and finds the "
        "asynchronous methods faster up to about 32 nodes, and all-reduce better towards 100."
    ),
    assumptions=(
        Assumption("messages", "ResNet-18, 46.8 MB", "published"),
        Assumption("network", "10 Gbit/s, 50 us", "ours"),
        Assumption("gradient time", "0.2 s for 32 images, with jitter of 0 or 10 %", "ours"),
        Assumption("overlap of all-reduce with the backward pass", "with it; the map has both", "ours"),
        Assumption("periods", "tau = 1 and 10", "published"),
        Assumption("momentum", "Nesterov 0.9, local", "published"),
        Assumption("form of gossip", "pull", "unconfirmed"),
        Assumption("moving rate of EASGD", "0.9 / p", "unconfirmed"),
        Assumption("what is trained", "an MLP on generated images of 8 x 8 pixels, batch 8 per node", "ours"),
        Assumption("schedule", "cosine; 10 epochs on up to 16 nodes, 20 on more; 40 where it is said", "ours"),
        Assumption("target", "0.38, the test loss of one worker at 80 % of its budget (study of lian2017)", "ours"),
    ),
    studies=STUDIES,
    claims=(
        Claim(CLAIMS["J1"], ("few_even", "few_uneven"), claims.j1),
        Claim(CLAIMS["J2"], ("many_uneven", "hundred"), claims.j2),
        Claim(CLAIMS["J3"], ("few_uneven", "many_uneven"), claims.j3),
        Claim(CLAIMS["J4"], ("few_even", "longer", "period"), claims.j4),
        Claim(CLAIMS["J5"], ("equal", "slow", "paused"), claims.j5),
        Claim(CLAIMS["J6"], ("served_easgd", "served_downpour"), claims.j6),
    ),
    charts=(
        Chart("loss_time", "Test loss against time", ("few_uneven", "many_uneven"), charts.loss_against_time),
        Chart(
            "final_loss",
            "Final test loss against nodes",
            ("few_uneven", "many_uneven"),
            charts.final_loss_against_nodes,
        ),
        Chart(
            "map",
            "Who is first, over overlap, jitter and nodes",
            ("few_even", "few_uneven", "many_uneven"),
            charts.crossover_map,
        ),
        Chart("server", "Throughput behind one server", ("served_easgd", "served_downpour"), charts.server_throughput),
    ),
)
