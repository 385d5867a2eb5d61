"""Zhang, Choromanska, LeCun 2015: elastic averaging SGD, with and without momentum, against Downpour."""

from __future__ import annotations

from studies.papers import CLAIMS, described
from studies.papers.zhang2015 import charts, claims, learning
from studies.papers.zhang2015.studies import DELAYED, ROUND_ROBIN, STUDIES
from studies.reproduction.paper import Chart, Claim

PAPER = described(
    "zhang2015",
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
