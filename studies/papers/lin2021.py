"""Lin et al. 2021 and Vogels et al. 2021: quasi-global momentum and RelaySGD, for data that differ."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from dsgd.record.reader import number
from dsgd.report.contest import Contender
from dsgd.report.interval import estimate
from studies.papers import CLAIMS
from studies.reproduction.logged import Logged
from studies.reproduction.paired import accuracy_gain
from studies.reproduction.paper import Assumption, Chart, Claim, Evidence, Paper, listed, named, newer_small
from studies.reproduction.verdict import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALPHAS = (10, 1, 0.1)  # of the Dirichlet distribution
EVEN, SKEWED = ALPHAS[0], ALPHAS[-1]
NAMES = {"dpsgd": "D-PSGD with momentum", "corrected": "quasi-global momentum", "relay": "RelaySGD"}
WAYS = (
    {"algo": "dpsgd", "algo.gradient": "first", "topology": "ring"},
    {"algo": "corrected", "algo.method": "qg", "optimizer.momentum": 0, "topology": "ring"},
    {"algo": "relay", "topology": "chain"},
)


def b12a(evidence: Evidence) -> Finding:
    """Compare the accuracy of quasi-global momentum with that of local momentum where data differ most."""
    logged = evidence["shares"]
    gains = {
        alpha: accuracy_gain(*(contender_at(logged, algo, alpha) for algo in ("corrected", "dpsgd")))
        for alpha in ALPHAS
    }
    what = f"alpha = {SKEWED}: accuracy of quasi-global momentum minus that of D-PSGD"
    check = CLAIMS["B12a"].check("gain", what, gains[SKEWED])
    others = ", ".join(f"{gains[alpha].median:+.4f} at alpha = {alpha}" for alpha in ALPHAS if alpha != SKEWED)
    local = {
        algo: median(_finals(contender_at(logged, algo, SKEWED), "worker_accuracy_mean"))
        for algo in ("corrected", "dpsgd")
    }
    reason = (
        f"Where data differ less it gains {others}. Rates at alpha = {SKEWED}: {_rates(logged)}. Accuracies are of the "
        f"mean of the workers' models; their own models have {local['corrected']:.3f} against {local['dpsgd']:.3f} "
        "there, "
        "in the mean over workers."
    )
    return CLAIMS["B12a"].judged([check], reason)


def b12b(evidence: Evidence) -> Finding:
    """Compare what the skew costs RelaySGD with what it costs D-PSGD with momentum."""
    logged = evidence["shares"]
    drops = {algo: [even - skewed for even, skewed in zip(accuracies(logged, algo, EVEN),
                                                          accuracies(logged, algo, SKEWED), strict=True)]
             for algo in NAMES}  # fmt: skip
    claim = CLAIMS["B12b"]
    pairs = [*zip(drops["relay"], drops["dpsgd"], strict=True)]
    name = "this drop of RelaySGD minus"
    span = f"alpha = {EVEN} minus at {SKEWED}"
    checks = [
        claim.check("drop", f"D-PSGD: accuracy at {span}", estimate(drops["dpsgd"])),
        claim.check("less", f"{name} that of D-PSGD", estimate([relay - plain for relay, plain in pairs])),
        claim.check("half", f"{name} half of that of D-PSGD", estimate([relay - plain / 2 for relay, plain in pairs])),
    ]
    text = ", ".join(f"{median(values):+.4f} {NAMES[algo]}" for algo, values in drops.items())
    ends = ", ".join(f"{median(accuracies(logged, algo, SKEWED)):.3f} {name}" for algo, name in NAMES.items())
    reason = (
        f"The drops: {text}. Accuracies at alpha = {SKEWED}: {ends}. In the first half of the run RelaySGD is behind: "
        "along a chain models come up to 15 steps late."
    )
    return claim.judged(checks, reason)


def contender_at(logged: Logged, algo: str, alpha: float) -> Contender:
    """Return the contender with this algorithm on such shares."""
    return logged.contender(algo=algo, data__split_alpha=alpha)


def accuracies(logged: Logged, algo: str, alpha: float) -> list[float]:
    """Return the test accuracies at the end, by seed; 0 where a run did not complete."""
    return _finals(contender_at(logged, algo, alpha), "test_accuracy")


def shares(evidence: Evidence) -> Figure:
    """Draw the accuracy at the end against the skew, and its curves where data differ most."""
    from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart, curve

    logged = evidence["shares"]
    ends = [
        ChartLine(name, algo, [(float(alpha), estimate(accuracies(logged, algo, alpha))) for alpha in ALPHAS])
        for algo, name in NAMES.items()
    ]
    curves = [
        curve(name, contender_at(logged, algo, SKEWED).runs, "epoch", "test_accuracy") for algo, name in NAMES.items()
    ]
    return chart(
        [
            ChartPanel("each tuned", "alpha of the shares", "test accuracy at the end", ends, log_x=True),
            ChartPanel(f"alpha = {SKEWED}", "epochs", "test accuracy", curves),
        ]
    )


def _rates(logged: Logged) -> str:
    """Return the tuned learning rates where data differ most."""
    return ", ".join(
        f"{contender_at(logged, algo, SKEWED).chosen['optimizer.lr']:g} {name}" for algo, name in NAMES.items()
    )


def _finals(contender: Contender, field: str) -> list[float]:
    return [number(run.final(field)) if run.status == "completed" else 0.0 for run in contender.runs]


PAPER = Paper(
    key="lin2021",
    order=18,
    title="Quasi-global momentum and RelaySGD: decentralised learning where data differ",
    reference="Lin, Karimireddy, Stich, Jaggi 2021, arXiv 2102.04761; Vogels et al. 2021, arXiv 2110.04175",
    summary=(
        "Workers that have data of their own pull apart, and momentum makes that worse. Quasi-global momentum follows "
        "where the network moves instead of the worker's own gradients; RelaySGD relays sums of models along a tree, "
        "until every model has reached everybody. The papers find that the first gains 1 to 20 points, and that the "
        "second does not care how data differ."
    ),
    assumptions=(
        Assumption("shares of data", "Dirichlet, alpha = 10, 1, 0.1; drawn anew with each seed", "published"),
        Assumption("graphs", "16 workers: a ring, for RelaySGD a chain", "published"),
        Assumption("momentum", "0.9, heavy ball; that of D-PSGD and RelaySGD is local", "published"),
        Assumption("order of D-PSGD", "step, then exchange", "published"),
        Assumption("what is trained", "an MLP without batch norm on generated images of 8 x 8 pixels, batch 16 per "
                   "worker, 20 epochs, rate decaying along a cosine", "ours"),
        Assumption("what is evaluated", "the mean of the workers' models", "ours"),
    ),
    studies=(
        newer_small(
            "shares", "nodes=16", "data.split=dirichlet", f"data.split_alpha={listed(ALPHAS)}",
            "optimizer.nesterov=false", "budget.epochs=20", f"compare.contenders=[{named(WAYS)}]",
        ),
    ),
    claims=(
        Claim(CLAIMS["B12a"], ("shares",), b12a),
        Claim(CLAIMS["B12b"], ("shares",), b12b),
    ),
    charts=(Chart("shares", "Test accuracy at the end against how much data differ, and its curves where they differ "
                  "most", ("shares",), shares),),
)  # fmt: skip
