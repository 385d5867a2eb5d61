"""Jin, Yuan, Iandola, Keutzer 2016: how to scale distributed deep learning?"""

from __future__ import annotations

from dsgd.papers.jin2016 import charts, claims
from dsgd.papers.jin2016.studies import STUDIES
from dsgd.reproduction.paper import Assumption, Chart, Claim, Paper

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
        Claim(
            "J1",
            "On few nodes EASGD and gossip reach the target sooner than all-reduce",
            "Jin",
            "p = 4, 8, 16, jitter 10 %: >= 1.10 times as soon at two of three p, for one of EASGD and gossip",
            ("few_even", "few_uneven"),
            claims.j1,
        ),
        Claim(
            "J2",
            "Towards 100 nodes all-reduce is better, in final loss and in time",
            "Jin",
            "100 nodes: final test loss at least 1 % below that of EASGD and gossip, time to the target no longer",
            ("many_uneven", "hundred"),
            claims.j2,
        ),
        Claim(
            "J3",
            "The crossover lies near 32 nodes",
            "Jin",
            "a crossover exists, between 16 and 64 nodes",
            ("few_uneven", "many_uneven"),
            claims.j3,
        ),
        Claim(
            "J4",
            "Raising tau from 1 to 10 costs little convergence and cuts traffic tenfold",
            "Jin",
            "p = 8, EASGD and gossip: bytes 10.0 within 0.1; samples to the target <= 1.25 times",
            ("few_even", "longer", "period"),
            claims.j4,
        ),
        Claim(
            "J5",
            "Gossip has no barrier and tolerates a lagging worker",
            "Jin",
            "one worker 4 times slower, or paused: gossip's others lose <= 5 % of their steps, all-reduce's >= 70 %",
            ("equal", "slow", "paused"),
            claims.j5,
        ),
        Claim(
            "J6",
            "An asynchronous server suffers contention as p grows",
            "Jin",
            "EASGD, Downpour: knee within 15 % of tau t B / N + 2 workers, flat beyond",
            ("served_easgd", "served_downpour"),
            claims.j6,
        ),
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
