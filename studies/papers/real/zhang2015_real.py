"""Zhang et al. 2015 at the real scale: rates with which EASGD and Downpour converge, times to a target, and periods."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from dsgd.record.reader import Run, number
from dsgd.report.contest import final_loss
from dsgd.report.interval import Estimate, estimate
from studies.papers.real.charts import on_each_task
from studies.papers.real.tasks import (
    MOST_TESTED,
    NULL,
    ON_BOTH_TASKS,
    SEEDS,
    TARGETS,
    TASKS,
    stated,
    swept,
    tuned,
)
from studies.reproduction import paired
from studies.reproduction.chart_panels import ChartLine, ChartPanel, chart
from studies.reproduction.fair import Null, accuracy_gain, time_ratio
from studies.reproduction.logged import Logged
from studies.reproduction.pages import shown
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, listed, named, of_task
from studies.reproduction.protocol import confidence_of_each
from studies.reproduction.verdict import Finding

RATES = tuple(0.1 * 2**k for k in range(-11, 5))  # to 1.6
WORKERS, LONG = (4, 8), (16, 64)  # long: periods
CONVERGED = 0.5  # of the test loss at the start: a run that ends below has converged
LARGEST_LOSS = 2.5  # that is drawn: above what guessing costs
PLAIN = ("optimizer.momentum=0", "optimizer.nesterov=false", "cluster=zhang2015")
RATE = "compare.tune={optimizer.lr: [0.05, 0.4]}"
TO_TARGET = ("compare.tune={optimizer.lr: [0.05, 0.4], budget.steps: [1280, 5120]}", "compare.tune_values=40")
EASGD, EAMSGD = {"algo": "easgd", "algo.tau": 10}, {"algo": "easgd", "algo.tau": 10, "algo.momentum": 0.9}
DOWNPOUR = [{"algo": "downpour", "algo.n_push": tau, "algo.n_fetch": tau} for tau in (1, 10)]
PERIODS, P = (1, 4, 16, 64), 8
OTHERWISE = (
    "At 10 Gbit/s. By these samples and simulated steps, on generated images, Downpour with tau = 1 would take 1.34 "
    "times as long as EASGD at 0.5 Gbit/s with p = 8, and 1.95 times at 0.25 Gbit/s with p = 4. Periods between 1 and "
    "10 were not run. Nor was EASGD with tau = 1, which needs up to 1.9 times fewer samples in "
    "[J4](jin2016_real.md#j4): not enough to be first. EAMSGD with p = 4 chose 10,240 steps, with which two of three "
    "tuning seeds reached the target on validation images; on the test images all end above it, by 0.001 to 0.013. In "
    "tuning with 20,480 steps, the next that it could choose, EASGD took 1.03 times as long."
)


def e1(evidence: Evidence) -> Finding:
    """Compare the ranges of rates with which EASGD and Downpour converge, at long periods, seed by seed."""
    claim, checks = stated("E1"), []
    confidence = confidence_of_each(len(WORKERS) * len(LONG))
    for nodes in WORKERS:
        for tau in LONG:
            elastic = evidence["easgd_rates"].where(nodes=nodes, algo__tau=tau)
            downpour = evidence["downpour_rates"].where(nodes=nodes, algo__n_push=tau)
            ratios = width_ratios(elastic, downpour)
            what = f"p = {nodes}, tau = {tau}: width of EASGD's range over the width of Downpour's"
            checks.append(claim.check("width", what, estimate(ratios, confidence)))
    return claim.judged(checks)


def width_ratios(easgd: Sequence[Run], downpour: Sequence[Run]) -> list[float]:
    """Return how wide the range of rates with which EASGD converges is, over Downpour's, by seed."""
    elastic, other = converging(easgd), converging(downpour)
    return [_width(elastic[seed]) / _width(other[seed]) for seed in elastic]


def converging(runs: Sequence[Run]) -> dict[int, list[float]]:
    """Return the rates whose runs converged, ascending, by seed."""
    by_seed: dict[int, list[float]] = {}
    for run in sorted(runs, key=_lr):
        rates = by_seed.setdefault(run.setting("seed"), [])
        if run.outcome == "completed" and final_loss(run) <= CONVERGED * number(run.metrics[0].get("test_loss")):
            rates.append(_lr(run))
    return by_seed


def e3(evidence: Evidence) -> Finding:
    """Compare the times to the target: EAMSGD, EASGD, Downpour with each period."""
    claim, logged, checks, samples = stated("E3"), evidence["race"], [], []
    count = len(WORKERS) * (1 + len(DOWNPOUR))
    for nodes in WORKERS:
        elastic = logged.contender(algo="easgd", nodes=nodes, algo__momentum=None)
        null = Null(elastic, evidence["null_race"].contender(nodes=nodes))
        momentum = logged.contender(algo="easgd", nodes=nodes, algo__momentum=0.9)
        what = f"p = {nodes}: time to the target, {{}}"
        value = time_ratio(elastic, momentum, count, null)
        checks.append(claim.check("ratio", what.format("EASGD over EAMSGD"), value))
        for options in DOWNPOUR:
            tau = options["algo.n_push"]
            downpour = logged.contender(algo="downpour", nodes=nodes, algo__n_push=tau)
            value = time_ratio(downpour, elastic, count, null)
            checks.append(claim.check("ratio", what.format(f"Downpour with tau = {tau} over EASGD"), value))
            if tau == 1:
                samples.append(f"{shown(paired.sample_ratio(downpour, elastic, rule=None))} with p = {nodes}")
    reason = f"Samples of Downpour with tau = 1 over samples of EASGD: {', '.join(samples)}."
    return claim.judged(checks, f"{reason} {OTHERWISE}")


def e4(evidence: Evidence) -> Finding:
    """Compare the accuracy of the centre at each longer period with the accuracy at period 1."""
    claim, logged = stated("E4"), evidence["periods"]
    short, *longer = (logged.contender(algo__tau=tau) for tau in PERIODS)
    null = Null(short, evidence["null_periods"].contender(algo="easgd"))
    what = "accuracy of the centre with tau = {} minus the accuracy with tau = 1"
    return claim.judged(
        [
            claim.check("accuracy", what.format(tau), accuracy_gain(each, short, len(longer), null))
            for tau, each in zip(PERIODS[1:], longer, strict=True)
        ]
    )


def rates(evidence: Evidence, task: str) -> Figure:
    """Draw the loss at the end against the rate, for each period and number of workers."""
    easgd, downpour = (evidence[of_task(f"{algo}_rates", task)] for algo in ("easgd", "downpour"))
    return rates_chart([rates_panel(easgd, downpour, nodes, tau) for nodes in WORKERS for tau in LONG])


def rates_panel(easgd: Logged, downpour: Logged, nodes: int, tau: int) -> ChartPanel:
    """Return the loss at the end against the rate, of both methods with one period."""
    elastic = easgd.where(nodes=nodes, algo__tau=tau)
    lines = [
        ChartLine("EASGD", "easgd", _loss_by_rate(elastic)),
        ChartLine("Downpour", "downpour", _loss_by_rate(downpour.where(nodes=nodes, algo__n_push=tau))),
    ]
    level = CONVERGED * number(elastic[0].metrics[0].get("test_loss"))
    title = f"p = {nodes}, tau = {tau}"
    return ChartPanel(title, "learning rate", "test loss at the end", lines, log_x=True, level=level)


def rates_chart(panels: Sequence[ChartPanel]) -> Figure:
    """Draw panels of losses against rates, with a note on what is not drawn."""
    note = f"Dotted: the loss below which a run counts as converged. Not drawn: losses above {LARGEST_LOSS}, diverged."
    return chart(panels, [note])


def _loss_by_rate(runs: Sequence[Run]) -> list[tuple[float, Estimate]]:
    """Return rate and final loss over seeds, as far as most seeds completed with a loss that can be drawn."""
    points = []
    for rate in sorted({number(run.setting("optimizer.lr")) for run in runs}):
        at = [run for run in runs if number(run.setting("optimizer.lr")) == rate]
        loss = estimate([final_loss(run) if run.outcome == "completed" else math.inf for run in at])
        if loss.median <= LARGEST_LOSS:
            points.append((rate, Estimate(loss.median, loss.low, min(loss.high, LARGEST_LOSS), loss.count)))
    return points


def _lr(run: Run) -> float:
    return number(run.setting("optimizer.lr"))


def _width(rates: Sequence[float]) -> float:
    """Return how wide a range is: each rate of the grid stands for a factor of 2."""
    return float(2 ** len(rates))


def _studies() -> Iterator[Study]:
    workers = f"nodes={listed(WORKERS)}"
    grid = (f"optimizer.lr={listed(RATES)}", "schedule=constant", workers, f"seed={listed(range(SEEDS))}")
    ways = [{"algo": "easgd", "algo.tau": tau} for tau in PERIODS]
    for task in TASKS:
        race = (*TO_TARGET, "target.stop=true", f"target.loss={TARGETS[task]}", workers, *PLAIN)
        periods = (RATE, f"nodes={P}", "eval.every_steps=640", *MOST_TESTED[task], *PLAIN)
        once = (*grid, "eval.every_steps=5120", *PLAIN)
        yield swept("easgd_rates", task, "algo=easgd", f"algo.tau={listed(LONG)}", *once)
        downpour = ("algo=downpour", f"algo.n_push={listed(LONG)}", "algo.n_fetch=${algo.n_push}")
        yield swept("downpour_rates", task, *downpour, *once)
        yield tuned("race", task, named([EAMSGD, EASGD, *DOWNPOUR]), *race)
        yield tuned("null_race", task, named([EASGD]), *race, NULL)
        yield tuned("periods", task, named(ways), *periods)
        yield tuned("null_periods", task, named(ways[:1]), *periods, NULL)


PAPER = Paper(
    key="zhang2015_real",
    order=4,
    title="Deep learning with elastic averaging SGD, at the real scale",
    reference="Zhang, Choromanska, LeCun 2015, NIPS, arXiv 1412.6651",
    summary=(
        "The rates with which EASGD and Downpour converge, who reaches a target sooner, and what long periods cost, by "
        "[the protocol](../../docs/explanation/papers.md)."
    ),
    assumptions=(
        Assumption("workers", "4 and 8; 8 in E4", "published"),
        Assumption("moving rate", "alpha = 0.9 / p", "unconfirmed"),
        Assumption("momentum", "0.9 in EAMSGD, Nesterov; none in EASGD and Downpour", "unconfirmed"),
        Assumption("schedule", "constant in E1, cosine in E3 and E4", "ours"),
        Assumption("network", "10 Gbit/s and 50 us, messages of 1.08 MB, gradients of 0.03 s", "ours"),
        *ON_BOTH_TASKS,
    ),
    studies=tuple(_studies()),
    claims=(
        Claim(stated("E1"), ("easgd_rates", "downpour_rates"), e1, TASKS),
        Claim(stated("E3"), ("race", "null_race"), e3, TASKS),
        Claim(stated("E4"), ("periods", "null_periods"), e4, TASKS),
    ),
    charts=on_each_task(
        "rates",
        "Test loss at the end against the rate, with long periods",
        lambda _: ("easgd_rates", "downpour_rates"),
        rates,
    ),
)
