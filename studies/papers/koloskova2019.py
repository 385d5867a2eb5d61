"""Koloskova et al. 2019: CHOCO-SGD, gossip of compressed differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dsgd.record.reader import Run, number
from dsgd.report.contest import Contender, final_loss
from dsgd.report.interval import Estimate, estimate
from studies.papers import CLAIMS
from studies.reproduction.logged import Logged
from studies.reproduction.paired import ratio, scores
from studies.reproduction.paper import Assumption, Chart, Claim, Evidence, Paper, newer_small
from studies.reproduction.verdict import Finding, exactly

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CODES = {
    "top 1 %": {"compressor": "topk", "share": 0.01},
    "top 10 %": {"compressor": "topk", "share": 0.1},
    "signs": {"compressor": "sign"},
}
ORDERS = ("before", "first")  # of D-PSGD: the published one, and that which CHOCO is without a code and with gamma = 1
WAYS = "[" + ", ".join(
    [f"{{algo: dpsgd, algo.gradient: {order}}}" for order in ORDERS]
    + ["{algo: choco, " + ", ".join(f"algo.{key}: {value}" for key, value in code.items()) + "}"
       for code in CODES.values()]
) + "]"  # fmt: skip
TUNED = "compare.tune={optimizer.lr: [0.025, 0.4], algo.gamma: [0.025, 0.4]}"

SHORTEST = "top 1 %"
LARGEST_LOSS = 2.5  # that is drawn: above what guessing costs


def b10(evidence: Evidence) -> Finding:
    """Compare the loss at the end and the bytes with those of D-PSGD, for the best code that is short enough."""
    claim = CLAIMS["B10"]
    margin, enough = claim.threshold("loss"), claim.threshold("fewer")
    logged = evidence["codes"]
    plain = reference(logged)
    codes = {name: of_code(logged, name) for name in CODES}
    fewer = {name: bytes_sent(plain) / bytes_sent(contender) for name, contender in codes.items()}
    ratios = {name: ratio(contender, plain) for name, contender in codes.items()}
    best = min(CODES, key=lambda name: (fewer[name] < enough, ratios[name].median))
    checks = [
        claim.check("fewer", f"{best}: times fewer bytes than D-PSGD", fewer[best]),
        claim.check("loss", f"{best}: test loss at the end over that of D-PSGD", ratios[best]),
        claim.check("fall", f"{SHORTEST}: test loss at the end over that at the start", fall(codes[SHORTEST])),
    ]
    text = "; ".join(
        f"{name}: {ratios[name].median:.3f} [{ratios[name].low:.3f}, {ratios[name].high:.3f}] with {fewer[name]:.3g} "
        f"times fewer bytes, gamma {contender.chosen['algo.gamma']:g} and rate {contender.chosen['optimizer.lr']:g}"
        for name, contender in codes.items()
    )
    order = plain.runs[0].setting("algo.gradient")
    reason = (
        f"The ratios of losses: {text}. D-PSGD is the better one of its two orders here, algo.gradient={order}, with "
        f"rate {plain.chosen['optimizer.lr']:g}."
    )
    runs = {name: contender.spent for name, contender in codes.items()}
    reason += (
        f" Tuning was not equal: {plain.spent} runs for D-PSGD, which has no gamma, and {min(runs.values())} to "
        f"{max(runs.values())} for the codes."
    )
    if above := [name for name in CODES if not ratios[name].median <= margin]:
        reason += f" Not with any compression: {' and '.join(above)} ended more than 3 % higher."
    return claim.judged(checks, reason)


def reference(logged: Logged) -> Contender:
    """Return D-PSGD in that order of step and exchange that ends at the lower loss."""
    both = [logged.contender(algo="dpsgd", algo__gradient=order) for order in ORDERS]
    return min(both, key=lambda contender: estimate(scores(contender)).median)


def of_code(logged: Logged, name: str) -> Contender:
    """Return CHOCO-SGD with this code."""
    return logged.contender(algo="choco", **{f"algo__{key}": value for key, value in CODES[name].items()})


def fall(contender: Contender) -> Estimate:
    """Return the loss at the end over that at the start; infinite where a run did not complete."""
    return estimate(
        [end / number(run.metrics[0]["test_loss"]) for run, end in zip(contender.runs, scores(contender), strict=True)]
    )


def by_gamma(logged: Logged, name: str) -> dict[float, float]:
    """Return for each gamma that was tried the lowest loss on the held-out samples, at the end, of all rates."""
    wanted = CODES[name].items()
    tried = [run for run in logged.tuning if all(run.setting(f"algo.{key}") == value for key, value in wanted)]
    losses: dict[float, float] = {}
    for run in tried:
        gamma, loss = run.setting("algo.gamma"), _held_out(run)
        losses[gamma] = min(loss, losses.get(gamma, np.inf))
    return dict(sorted(losses.items()))


def codes(evidence: Evidence) -> Figure:
    """Draw the loss against the bytes, and the loss at the end against gamma."""
    from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart, curve

    logged = evidence["codes"]
    plain = reference(logged)
    owners = [("D-PSGD", plain), *((name, of_code(logged, name)) for name in CODES)]
    curves = [
        curve(name, contender.runs, "bytes_sent", "test_loss", max(i - 1, 0))
        for i, (name, contender) in enumerate(owners)
    ]
    curves = [replace(line, points=[(x, y) for x, y in line.points if x > 0]) for line in curves]
    tried = [ChartLine(name, "choco", _drawable(by_gamma(logged, name)), i) for i, name in enumerate(CODES)]
    level = min(_held_out(run) for run in logged.tuning if run.algorithm == "dpsgd")
    return chart(
        [
            ChartPanel("each tuned", "bytes sent, all workers", "test loss", curves, log_x=True),
            ChartPanel("best rate for each; line: D-PSGD", "gamma", "held-out loss at the end", tried,
                       log_x=True, level=level),
        ]
    )  # fmt: skip


def bytes_sent(contender: Contender) -> float:
    """Return the bytes that all workers sent."""
    return contender.runs[0].final("bytes_sent_total")


def _held_out(run: Run) -> float:
    """Return the loss at the end of a run of tuning; infinite if it did not complete."""
    return final_loss(run) if run.outcome == "completed" else np.inf


def _drawable(losses: dict[float, float]) -> Sequence[tuple[float, Estimate]]:
    return [(gamma, exactly(loss)) for gamma, loss in losses.items() if loss <= LARGEST_LOSS]


PAPER = Paper(
    key="koloskova2019",
    order=17,
    title="CHOCO-SGD: decentralized stochastic optimization and gossip with compressed communication",
    reference="Koloskova, Stich, Jaggi 2019, arXiv 1902.00340; Koloskova, Lin, Stich, Jaggi 2020, arXiv 1907.09356",
    summary=(
        "Neighbours in a graph send each other short codes of how their parameters differ from what the others know "
        "of them. The papers find the loss of uncompressed gossip with any code, if the step of the mixing suits it."
    ),
    assumptions=(
        Assumption("order", "step, send, mix", "published"),
        Assumption("codes", "of the whole vector, not of each layer", "ours"),
        Assumption("gamma and learning rate", "tuned together, for each code", "ours"),
        Assumption("local momentum", "0.9, not mixed; Nesterov", "ours"),
        Assumption("what is trained", "an MLP on generated images of 8 x 8 pixels, 8 workers in a ring, batch 16 each, "
                   "10 epochs", "ours"),
    ),
    studies=(
        newer_small(
            "codes", "nodes=8", "topology=ring", TUNED, "compare.tune_values=36", f"compare.contenders={WAYS}",
        ),
    ),
    claims=(
        Claim(CLAIMS["B10"], ("codes",), b10),
    ),
    charts=(Chart("codes", "Test loss against bytes; loss at the end against gamma, where it did not diverge or "
                  f"end above {LARGEST_LOSS}", ("codes",), codes),),
)  # fmt: skip
