"""Douillard et al. 2023: DiLoCo, hundreds of local steps between two averages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsgd.papers import CLAIMS
from dsgd.record.reader import Run
from dsgd.report.contest import Contender
from dsgd.report.interval import estimate
from dsgd.reproduction.logged import Logged
from dsgd.reproduction.paired import ratio, scores
from dsgd.reproduction.paper import Assumption, Chart, Claim, Evidence, Paper, Study, listed
from dsgd.reproduction.verdict import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PERIODS = (1, 5, 20, 50, 100)
CLAIMED = 50
WAYS = "[{algo: sync}, " + ", ".join(f"{{algo: diloco, algo.tau: {tau}}}" for tau in PERIODS) + "]"
TUNED = "compare.tune={optimizer.lr: [0.05, 0.2], algo.olr: [0.175, 0.7]}"


def b7(found: Evidence) -> Finding:
    """Compare the loss at the end with that of all-reduce, and the bytes with those of a round in every step."""
    claim = CLAIMS["B7"]
    logged = found["rounds"]
    exact = logged.contender(algo="sync")
    each = {tau: of_period(logged, tau) for tau in PERIODS}
    ratios = {tau: ratio(one, exact) for tau, one in each.items()}
    checks = [
        claim.check(
            "bytes", f"H = {tau}: bytes of a whole number of rounds over those of H = 1, times H", _bytes(found, tau)
        )
        for tau in PERIODS
    ]
    what = f"H = {CLAIMED}: test loss at the end over that of all-reduce"
    checks.append(claim.check("loss", what, ratios[CLAIMED]))
    longer = ratio(*(found["longer"].contender(algo=algo) for algo in ("diloco", "sync")))
    good = [tau for tau in PERIODS if ratios[tau].median <= claim.threshold("loss")]
    told = ", ".join(f"{one.median:.3f} [{one.low:.3f}, {one.high:.3f}] at H = {tau}" for tau, one in ratios.items())
    reason = (
        f"The ratios: {told}. {f'The largest H within 2 %: {max(good)}. ' if good else ''}SGD in the local steps, from "
        "a cold start; the paper's runs have AdamW and 176 rounds, these 45. With AdamW, the published outer rate 0.7 "
        f"and 180 rounds the ratio is {longer.median:.3f} [{longer.low:.3f}, {longer.high:.3f}] at H = {CLAIMED}."
    )
    return claim.judged(checks, reason)


def of_period(logged: Logged, tau: int) -> Contender:
    """Return DiLoCo with so many local steps."""
    return logged.contender(algo="diloco", algo__tau=tau)


def rounds(found: Evidence) -> Figure:
    """Draw the loss at the end against the number of local steps, and against epochs."""
    from dsgd.reproduction.charts import ChartLine, ChartPanel, chart, curve

    logged = found["rounds"]
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


def _bytes(found: Evidence, tau: int) -> float:
    """Return the bytes of a run with this period over those with period 1, times the period."""
    often, seldom = (found["bytes"].one(algo__tau=period) for period in (1, tau))
    return _sent(seldom) / _sent(often) * tau


def _sent(run: Run) -> float:
    return run.final("bytes_sent_total")


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
    ),
    studies=(
        Study(
            "rounds",
            ("nodes=8", "budget.epochs=20", TUNED,
             f"compare.contenders={WAYS}"),
            ("experiment=newer_small",),
            tuned=True,
        ),
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
    ),
    claims=(
        Claim(CLAIMS["B7"], ("rounds", "longer", "bytes"), b7),
    ),
    charts=(Chart("rounds", "Test loss at the end against the number of local steps; and against epochs",
                  ("rounds",), rounds),),
)  # fmt: skip
