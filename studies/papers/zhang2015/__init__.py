"""Zhang, Choromanska, LeCun 2015: elastic averaging SGD, with and without momentum, against Downpour."""

from __future__ import annotations

from studies.evidence.claim import claim_on_tasks
from studies.papers import CLAIMS, described
from studies.papers.zhang2015 import claims, learning
from studies.reproduction.paper import Claim

PAPER = described(
    "zhang2015",
    claim_on_tasks(CLAIMS["E1"], learning.rates),
    Claim(CLAIMS["E2"], claims.e2),
    claim_on_tasks(CLAIMS["E3"], learning.race),
    claim_on_tasks(CLAIMS["E4"], learning.periods),
    Claim(CLAIMS["E5"], claims.e5),
    Claim(CLAIMS["E6"], claims.e6),
    charts={"stability": claims.stability_figure, "admm": claims.admm_figure},
)
