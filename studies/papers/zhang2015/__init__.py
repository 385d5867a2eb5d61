"""Zhang, Choromanska, LeCun 2015: elastic averaging SGD, with and without momentum, against Downpour."""

from __future__ import annotations

from studies.papers import CLAIMS
from studies.papers.zhang2015 import charts, claims
from studies.papers.zhang2015.studies import DELAYED, ROUND_ROBIN, STUDIES, TARGET
from studies.reproduction.paper import Assumption, Chart, Claim, Paper

PAPER = Paper(
    key="zhang2015",
    order=4,
    title="Deep learning with elastic averaging SGD",
    reference="Zhang, Choromanska, LeCun 2015, NIPS, arXiv 1412.6651",
    summary=(
        "Workers and a centre pull each other by a spring, every tau steps: a weak spring and a long period let "
        "workers explore. The rival is Downpour SGD (Dean et al. 2012) with a plain server and the same period. What "
        "is shown of training is of a small network; what is shown of stability is exact."
    ),
    assumptions=(
        Assumption("model and data at full scale", "ResNet-20 with group norm for a 7-layer convnet; CIFAR-10", "ours"),
        Assumption("model and data here", "one hidden layer of 128, 16,000 images of 8 x 8 pixels, batch 8", "ours"),
        Assumption("moving rate", "alpha = 0.9 / p", "unconfirmed"),
        Assumption("periods", "1, 4, 16, 64; 10 where times are compared", "unconfirmed"),
        Assumption("momentum of EAMSGD", "0.9; 0.99 in the paper, unconfirmed", "ours"),
        Assumption("rates", "constant, tuned for each method", "unconfirmed"),
        Assumption("weight decay", "1e-4", "unconfirmed"),
        Assumption("Downpour", "plain SGD at the server, one period for pushes and fetches", "unconfirmed"),
        Assumption("network", "InfiniBand, taken as 10 Gbit/s and 50 us", "ours"),
        Assumption("gradient", "0.03 s, of a batch of 128; messages of 1.08 MB", "ours"),
        Assumption("target", f"test loss {TARGET:g}: of one worker at 80 % of 2.5 epochs; others have 10", "ours"),
    ),
    studies=STUDIES,
    claims=(
        Claim(CLAIMS["E1"], ("easgd_rates", "downpour_rates"), claims.e1),
        Claim(CLAIMS["E2"], tuple(study.name for study in ROUND_ROBIN), claims.e2),
        Claim(CLAIMS["E3"], ("alone", "race", "downpour_rates_short"), claims.e3),
        Claim(CLAIMS["E4"], ("periods", "periods_later"), claims.e4),
        Claim(CLAIMS["E5"], tuple(study.name for study in DELAYED), claims.e5),
        Claim(CLAIMS["E6"], (), claims.e6),
    ),
    charts=(
        Chart(
            "rates",
            "With a long period Downpour fails at rates with which EASGD converges",
            ("easgd_rates", "downpour_rates", "easgd_rates_short", "downpour_rates_short"),
            charts.rates_figure,
        ),
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
        Chart("race", "Test loss against time, period 10, rates tuned", ("race",), charts.race_figure),
        Chart(
            "periods",
            "Test error of the centre, 8 workers, rates tuned for each period",
            ("periods",),
            charts.periods_figure,
        ),
    ),
)
