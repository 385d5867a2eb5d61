"""Zhang, Choromanska, LeCun 2015: elastic averaging SGD, with and without momentum, against Downpour."""

from __future__ import annotations

from studies.papers import CLAIMS
from studies.papers.zhang2015 import charts, claims, learning
from studies.papers.zhang2015.studies import DELAYED, ROUND_ROBIN, STUDIES
from studies.reproduction.paper import Assumption, Chart, Claim, Paper

PAPER = Paper(
    key="zhang2015",
    order=4,
    title="Deep learning with elastic averaging SGD",
    reference="Zhang, Choromanska, LeCun 2015, NIPS, arXiv 1412.6651",
    summary=(
        "Workers and a centre pull each other by a spring, every tau steps: a weak spring and a long period let "
        "workers explore. The rival is Downpour SGD (Dean et al. 2012) with a plain server. Claims of stability are "
        "exact; the others are of training."
    ),
    assumptions=(
        Assumption("quadratic of E2 and E5", "one parameter of curvature 1, no noise", "ours"),
        Assumption(
            "order of workers", "in turn; in E5 a vector takes a hundredth of a gradient, so that they are", "ours"
        ),
        Assumption("Downpour", "plain SGD at the server, one period for pushes and fetches", "unconfirmed"),
        Assumption("workers", "8 in E1 and E4, 4 in E3", "published"),
        Assumption("moving rate", "0.9 / p; in E3 also 0.5, by tuning", "unconfirmed"),
        Assumption("momentum", "0.9 or 0.99, by tuning, in EAMSGD; none in EASGD and Downpour", "unconfirmed"),
        Assumption("schedule", "constant in E1, cosine in E3 and E4", "ours"),
        Assumption("network", "10 Gbit/s and 50 us, messages of 1.08 MB, gradients of 0.03 s", "ours"),
    ),
    studies=STUDIES,
    claims=(
        learning.E1,
        Claim(CLAIMS["E2"], tuple(study.name for study in ROUND_ROBIN), claims.e2),
        learning.E3,
        learning.E4,
        Claim(CLAIMS["E5"], tuple(study.name for study in DELAYED), claims.e5),
        Claim(CLAIMS["E6"], (), claims.e6),
    ),
    charts=(
        Chart(
            "stability",
            "Growth on a line, just below and just above the bounds of stability",
            (charts.ROUND_ROBIN_AT_1.name, *(study.name for study in DELAYED)),
            charts.stability_figure,
        ),
        Chart(
            "admm",
            "Growth of an error in turn: EASGD diverges only beyond its bound, ADMM at small rates",
            (),
            charts.admm_figure,
        ),
    ),
)
