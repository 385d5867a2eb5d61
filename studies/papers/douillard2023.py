"""Douillard et al. 2023: DiLoCo, hundreds of local steps between two averages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsgd.record.reader import Run
from dsgd.report.contest import Contender
from dsgd.report.interval import estimate
from studies.papers import CLAIMS
from studies.papers.zhang2015.stability import growth_per_step
from studies.reproduction.logged import Logged
from studies.reproduction.paired import ratio, scores
from studies.reproduction.paper import Assumption, Chart, Claim, Evidence, Paper, Study, listed, newer_small
from studies.reproduction.verdict import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PERIODS = (1, 5, 20, 50, 100)
CLAIMED = 50
WAYS = "[{algo: sync}, " + ", ".join(f"{{algo: diloco, algo.tau: {tau}}}" for tau in PERIODS) + "]"
TUNED = "compare.tune={optimizer.lr: [0.05, 0.2], algo.olr: [0.175, 0.7]}"

OLR = 0.7  # published
LINE_PERIODS, LINE_BETAS = (1, 4), (0.3, 0.5, 0.9)  # of the quadratic with one parameter, whose curvature is 1
DECAY = 24  # time constants of the error in a run of it
SHORT, LONG, BETA = 1, 50, 0.9


def b7(evidence: Evidence) -> Finding:
    """Compare the loss at the end with that of all-reduce, and the bytes with those of a round in every step."""
    claim = CLAIMS["B7"]
    logged = evidence["rounds"]
    exact = logged.contender(algo="sync")
    each = {tau: of_period(logged, tau) for tau in PERIODS}
    ratios = {tau: ratio(contender, exact) for tau, contender in each.items()}
    checks = [
        claim.check(
            "bytes", f"H = {tau}: bytes of a whole number of rounds over those of H = 1, times H", _bytes(evidence, tau)
        )
        for tau in PERIODS
    ]
    what = f"H = {CLAIMED}: test loss at the end over that of all-reduce"
    checks.append(claim.check("loss", what, ratios[CLAIMED]))
    longer = ratio(*(evidence["longer"].contender(algo=algo) for algo in ("diloco", "sync")))
    good = [tau for tau in PERIODS if ratios[tau].median <= claim.threshold("loss")]
    text = ", ".join(
        f"{interval.median:.3f} [{interval.low:.3f}, {interval.high:.3f}] at H = {tau}"
        for tau, interval in ratios.items()
    )
    reason = (
        f"The ratios: {text}. {f'The largest H within 2 %: {max(good)}. ' if good else ''}SGD in the local steps, from "
        "a cold start; the paper's runs have AdamW and 176 rounds, these 45. With AdamW, the published outer rate 0.7 "
        f"and 180 rounds the ratio is {longer.median:.3f} [{longer.low:.3f}, {longer.high:.3f}] at H = {CLAIMED}."
    )
    return claim.judged(checks, reason)


def d3(evidence: Evidence) -> Finding:
    """Compare what a round removes of an error, over what its local steps do, with the effective outer rate."""
    claim, checks = CLAIMS["D3"], []
    for beta in LINE_BETAS:
        for tau in LINE_PERIODS:
            left = growth_per_step(evidence[_line_name(beta, tau)].runs[0]) ** tau  # of the error, and of a difference
            expected = OLR * (1 + beta / (1 - beta / left))
            what = f"mu = {beta:g}, H = {tau}: effective outer rate"
            checks.append(claim.check("rate", what, (1 - left) / removed(beta), expected))
    reason = (
        f"Without noise, with the outer rate {OLR:g}, and local rates so small that the error does not swing. Where "
        "differences are independent of each other, rho is 0 and the rate eta (1 + mu); where they are equal, it is "
        "eta / (1 - mu), ten times eta with 0.9. Rounds that are short make differences that are alike."
    )
    return claim.judged(checks, reason)


def removed(beta: float) -> float:
    """Return the share of an error that the local steps of a round remove: half of what makes it swing."""
    return (1 - 4 * beta / (1 + beta) ** 2) / (2 * OLR)


def d5(evidence: Evidence) -> Finding:
    """Compare the losses at the end with and without outer momentum, each with the rate that suits it."""
    claim, logged = CLAIMS["D5"], evidence["momentum"]
    checks = []
    for name, tau in (("short", SHORT), ("long", LONG)):
        pair = (logged.contender(algo__tau=tau, algo__beta=beta) for beta in (BETA, 0))
        what = f"H = {tau}: test loss with an outer momentum of {BETA:g} over that without"
        checks.append(claim.check(name, what, ratio(*pair)))
    return claim.judged(checks)


def of_period(logged: Logged, tau: int) -> Contender:
    """Return DiLoCo with so many local steps."""
    return logged.contender(algo="diloco", algo__tau=tau)


def rounds(evidence: Evidence) -> Figure:
    """Draw the loss at the end against the number of local steps, and against epochs."""
    from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart, curve

    logged = evidence["rounds"]
    ends = [(float(tau), estimate(scores(of_period(logged, tau)))) for tau in PERIODS]
    exact = logged.contender(algo="sync")
    level = estimate(scores(exact)).median
    curves = [curve("all-reduce", exact.runs, "epoch", "test_loss")]
    curves += [curve(f"H = {tau}", of_period(logged, tau).runs, "epoch", "test_loss", i)
               for i, tau in enumerate(PERIODS) if tau in (1, 20, 100)]  # fmt: skip
    return chart(
        [
            ChartPanel("line: all-reduce", "local steps of a round, H", "test loss at the end",
                       [ChartLine("DiLoCo", "diloco", ends)], log_x=True, level=level),
            ChartPanel("each tuned", "epochs", "test loss", curves, log_y=True),
        ]
    )  # fmt: skip


def _bytes(evidence: Evidence, tau: int) -> float:
    """Return the bytes of a run with this period over those with period 1, times the period."""
    often, seldom = (evidence["bytes"].run(algo__tau=period) for period in (1, tau))
    return _sent(seldom) / _sent(often) * tau


def _sent(run: Run) -> float:
    return run.final("bytes_sent_total")


def _line(beta: float, tau: int) -> Study:
    """Return DiLoCo on a line, until little is left of the error."""
    a = removed(beta)
    first = (1 + beta) * (1 - OLR * a)  # of the equation of what a round leaves, r^2 - first r + beta (1 - OLR a) = 0
    left = (first + (first**2 - 4 * beta * (1 - OLR * a)) ** 0.5) / 2
    return Study(
        _line_name(beta, tau),
        ("algo=diloco", f"algo.tau={tau}", f"algo.olr={OLR:g}", f"algo.beta={beta:g}", "nodes=2",
         f"optimizer.lr={1 - (1 - a) ** (1 / tau):.9g}", "optimizer.momentum=0", "engine=sim", "experiment=quadratic",
         "data.dim=1", "data.spread=0", "data.noise=0", f"budget.steps={round(DECAY / (1 - left)) * tau}",
         f"eval.every_steps={tau}"),
    )  # fmt: skip


def _line_name(beta: float, tau: int) -> str:
    return f"line_{beta:g}_{tau}".replace(".", "")


LINES = tuple(_line(beta, tau) for beta in LINE_BETAS for tau in LINE_PERIODS)
MOMENTA = ", ".join(f"{{algo.tau: {tau}, algo.beta: {beta:g}}}" for tau in (SHORT, LONG) for beta in (0, BETA))

PAPER = Paper(
    key="douillard2023",
    order=14,
    title="DiLoCo: distributed low-communication training of language models",
    reference="Douillard et al. 2023, arXiv 2311.08105; the repository of OpenDiLoCo",
    summary=(
        "Workers make hundreds of steps by themselves; an outer optimiser with Nesterov's momentum takes the mean of "
        "what they have moved for a gradient. The paper finds it as good as synchronous training, with a "
        "five-hundredth of the messages. H, the local steps of a round, is `algo.tau`."
    ),
    assumptions=(
        Assumption("outer optimiser", "Nesterov's momentum, 0.9", "published"),
        Assumption("outer rate", "tuned, from 0.175, 0.35 and 0.7 on; published: 0.7", "ours"),
        Assumption("local steps", "SGD with momentum 0.9 instead of AdamW, but for a second look", "ours"),
        Assumption("what is trained", "an MLP on generated images of 8 x 8 pixels, 8 workers, batch 16 each, 20 epochs",
                   "ours"),
        Assumption("samples", "the same for all", "published"),
        Assumption("outer rate of D3 and D5", f"{OLR:g}", "published"),
        Assumption("quadratic of D3", "one parameter, exact gradients, two workers", "ours"),
        Assumption("what is trained in D5", "as above, 4 workers, 10 epochs; the local rate is tuned", "ours"),
    ),
    studies=(
        newer_small("rounds", "nodes=8", "budget.epochs=20", TUNED, f"compare.contenders={WAYS}"),
        Study(
            "longer",
            ("model=mlp", "model.hidden=[128]", "data=shapes", "data.resolution=8", "data.train_size=16000",
             "batch_size=16", "schedule=cosine", "cluster=jin2016", "engine=sim", "eval.every_epochs=2", "nodes=8",
             "budget.epochs=80", "optimizer=adamw", "compare.tune={optimizer.lr: [0.002, 0.008]}",
             f"compare.contenders=[{{algo: sync}}, {{algo: diloco, algo.tau: {CLAIMED}}}]"),
            tuned=True,
        ),
        Study(
            "bytes",
            ("algo=diloco", f"algo.tau={listed(PERIODS)}", "nodes=8", "engine=sim", "engine.gradients=none",
             "cluster=jin2016", "budget.epochs=null", "budget.steps=200"),
        ),
        *LINES,
        newer_small("momentum", "algo=diloco", f"compare.contenders=[{MOMENTA}]", "nodes=4"),
    ),
    claims=(
        Claim(CLAIMS["B7"], ("rounds", "longer", "bytes"), b7),
        Claim(CLAIMS["D3"], tuple(study.name for study in LINES), d3),
        Claim(CLAIMS["D5"], ("momentum",), d5),
    ),
    charts=(Chart("rounds", "Test loss at the end against the number of local steps; and against epochs",
                  ("rounds",), rounds),),
)  # fmt: skip
