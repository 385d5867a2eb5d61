"""Zhang, Choromanska, LeCun 2015: elastic averaging SGD, with and without momentum, against Downpour."""

from __future__ import annotations

from studies.papers import CLAIMS
from studies.papers.zhang2015 import charts, claims
from studies.papers.zhang2015.studies import DELAYED, ROUND_ROBIN, STUDIES
from studies.reproduction.paper import Assumption, Chart, Claim, Paper

PAPER = Paper(
    key="zhang2015",
    order=4,
    title="Deep learning with elastic averaging SGD",
    reference="Zhang, Choromanska, LeCun 2015, NIPS, arXiv 1412.6651",
    summary=(
        "Workers and a centre pull each other by a spring, every tau steps: a weak spring and a long period let "
        "workers explore. The rival is Downpour SGD (Dean et al. 2012) with a plain server. This page has what is "
        "exact: where both are stable. What is claimed of training is on "
        "[the page of the real scale](zhang2015_real.md)."
    ),
    assumptions=(
        Assumption("quadratic of E2 and E5", "one parameter of curvature 1, no noise", "ours"),
        Assumption(
            "order of workers", "in turn; in E5 a vector takes a hundredth of a gradient, so that they are", "ours"
        ),
        Assumption("Downpour", "plain SGD at the server, one period for pushes and fetches", "unconfirmed"),
    ),
    studies=STUDIES,
    claims=(
        Claim(CLAIMS["E2"], tuple(study.name for study in ROUND_ROBIN), claims.e2),
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
