"""Judge the claims of Zhang et al. from the logged runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from dsgd.record.reader import Run, number
from dsgd.report.contest import Contender, final_loss, goal_of
from dsgd.report.interval import Estimate, estimate
from dsgd.report.ratio import paired_ratio
from studies.papers import CLAIMS
from studies.papers.zhang2015.stability import (
    admm_radius,
    delayed_rate_bound,
    delayed_rate_by_bisection,
    extremes,
    growth_per_step,
    moving_rate_bound,
    round_robin_radius,
)
from studies.papers.zhang2015.studies import (
    ABOVE,
    BELOW,
    DELAYED,
    DELAYED_ABOVE,
    DELAYED_BELOW,
    DELAYED_WORKERS,
    LONG,
    RATES,
    ROUND_ROBIN,
    WORKERS,
)
from studies.reproduction.logged import Logged
from studies.reproduction.paired import accuracy_gain, scores
from studies.reproduction.paper import Evidence
from studies.reproduction.verdict import Check, Finding

CONVERGED = 0.5  # of the test loss at the start: a run that ends below has converged
RADIUS_WORKERS = (3, 4, 5, 6, 8, 16, 32, 64)
RADIUS_RATES = (0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
ADMM_WORKERS, PENALTIES = (3, 4, 8, 16), (0.5, 1.0, 2.5, 5.0, 10.0)
SMALL_RATE, LARGE_RATE = 1e-4, 0.1  # times curvature
EXAMPLE = (3, 1e-3, 2.5)  # workers, rate and penalty
LATER = 4  # a period that has four times as many samples, for the cause of a failure
TARGET_SHARE = 0.8  # of the budget of one worker


def e1(evidence: Evidence) -> Finding:
    """Compare the ranges of rates with which EASGD and Downpour converge, at long periods, seed by seed."""
    claim = CLAIMS["E1"]
    checks, highest = [], []
    for nodes in WORKERS:
        for tau in LONG:
            runs = (
                evidence["easgd_rates"].where(nodes=nodes, algo__tau=tau),
                evidence["downpour_rates"].where(nodes=nodes, algo__n_push=tau),
            )
            what = f"p = {nodes}, tau = {tau}: width of EASGD's range over that of Downpour's"
            checks.append(claim.check("width", what, estimate(width_ratios(*runs))))
            highest.append(f"{what.partition(':')[0]}: {highest_stable(runs[0]):g} and {highest_stable(runs[1]):g}")
    reason = (
        "A run converges that ends with at most half of the test loss that it began with; each such rate of the grid, "
        f"{RATES[0]:g} to {RATES[-1]:g}, stands for a factor of 2 of the width. The highest rates at "
        f"which no seed diverges or collapses, of EASGD and Downpour: {'; '.join(highest)}."
    )
    return claim.judged(checks, reason)


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


def highest_stable(runs: Sequence[Run]) -> float:
    """Return the highest rate up to which no run diverges or collapses, 0 if there is none."""
    broken = [_lr(run) for run in runs if run.outcome in ("diverged", "collapsed")]
    return max((_lr(run) for run in runs if _lr(run) < min(broken, default=math.inf)), default=0.0)


def e2(evidence: Evidence) -> Finding:
    """Compare spectral radii of a round with 1, just below and just above a bound that does not know p."""
    claim = CLAIMS["E2"]
    below, above = (
        [round_robin_radius(p, lr_h, side * moving_rate_bound(lr_h)) for p in RADIUS_WORKERS for lr_h in RADIUS_RATES]
        for side in (BELOW, ABOVE)
    )
    stable, unstable = [], []
    for study in ROUND_ROBIN:
        low, high = sorted(evidence[study.name].values("algo.alpha"))
        stable += evidence[study.name].where(algo__alpha=low)
        unstable += evidence[study.name].where(algo__alpha=high)
    slowest, fastest = extremes(unstable)[0], extremes(stable)[1]
    checks = [
        claim.check("stable", f"largest spectral radius at {BELOW} of the bound, p = 3 to 64", max(below)),
        claim.check("grows", f"smallest spectral radius at {ABOVE} of the bound, p = 3 to 64", min(above)),
        claim.check("shrinks", f"runs at {BELOW} of the bound: largest growth per round", fastest),
        claim.check("grows", f"runs at {ABOVE} of the bound: smallest growth per round", slowest),
    ]
    reason = (
        "The radii are those of the product of p elementary maps, for rates times curvature of "
        f"{RADIUS_RATES[0]:g} to {RADIUS_RATES[-1]:g}; the runs are this program's, with p = 3, 4, 8 and 16."
    )
    return claim.judged(checks, reason)


def e3(evidence: Evidence) -> Finding:
    """Compare times to the target, seed by seed: EAMSGD, EASGD, Downpour."""
    claim = CLAIMS["E3"]
    checks = []
    for nodes in WORKERS:
        momentum, elastic, downpour = (scores(contender) for contender in racers(evidence["race"], nodes))
        ordered = sum(a < b < c for a, b, c in zip(momentum, elastic, downpour, strict=True))
        checks += [
            claim.check("order", f"p = {nodes}: seeds with this order", ordered),
            claim.check("ratio", f"p = {nodes}: time of EASGD over EAMSGD", paired_ratio(elastic, momentum)),
            claim.check("ratio", f"p = {nodes}: time of Downpour over EASGD", paired_ratio(downpour, elastic)),
            claim.check(
                "ratio",
                f"p = {nodes}: time of Downpour at its best period, at most, over EASGD",
                Estimate(math.nan, 0.0, _latest(evidence, nodes) / min(elastic), 1),
            ),
        ]
    alone = level_at(evidence["alone"].runs, TARGET_SHARE)
    goal = goal_of(evidence["race"].runs[0])
    reason = (
        f"The target is {goal.text}; one worker has a test loss of {alone:.3g} at {TARGET_SHARE:.0%} of its budget. "
        "The period is 10, all rates are tuned, the momentum of EAMSGD is 0.9. Downpour's best period in the paper is "
        "1. No study has its times to the target with that; runs of 5 epochs with a period of 1 or 4, one seed for "
        "each rate, had reached the target when they ended, so that Downpour takes at most as long as they."
    )
    return claim.judged(checks, reason)


def _latest(evidence: Evidence, nodes: int) -> float:
    """Return by when Downpour with a short period has reached the target; infinity if no run has."""
    goal = number(evidence["race"].runs[0].target)
    runs = evidence["downpour_rates_short"].where(nodes=nodes)
    return min((number(run.final("time_s")) for run in runs if final_loss(run) <= goal), default=math.inf)


def racers(race: Logged, nodes: int) -> tuple[Contender, Contender, Contender]:
    """Return EAMSGD, EASGD and Downpour."""
    return (
        race.contender(algo="easgd", nodes=nodes, algo__momentum=0.9),
        race.contender(algo="easgd", nodes=nodes, algo__momentum=None),
        race.contender(algo="downpour", nodes=nodes),
    )


def level_at(runs: Sequence[Run], share: float) -> float:
    """Return the median test loss of runs after a share of their samples."""
    losses = []
    for run in runs:
        samples = share * number(run.final("samples"))
        losses.append(next(number(m.get("test_loss")) for m in run.metrics if number(m.get("samples")) >= samples))
    return median(losses)


def e4(evidence: Evidence) -> Finding:
    """Compare the accuracy of the centre at the best longer period, by validation, with that at period 1."""
    claim = CLAIMS["E4"]
    periods = evidence["periods"]
    validation = {
        tau: min(_validation_loss(run) for run in periods.tuning if run.setting("algo.tau") == tau)
        for tau in periods.values("algo.tau")
    }
    longer = min((tau for tau in validation if tau > 1), key=lambda tau: validation[tau])
    what = "accuracy of the centre with tau = {} less that with tau = 1"
    check = claim.check("accuracy", what.format(longer), _gain(periods, longer))
    reason = (
        f"tau = {longer} has the lowest validation loss of all longer periods; all see equally many samples. If a "
        "longer period only needs more of them, because the centre moves in fewer exchanges, four times as many "
        "make it good."
    )
    later = claim.check(
        "accuracy", f"{what.format(LATER)}, 4 times the samples", _gain(evidence["periods_later"], LATER)
    )
    return claim.judged([check], reason, explained_by=[later])


def _gain(periods: Logged, tau: int) -> Estimate:
    """Return by how much the accuracy with a period is above that with period 1, seed by seed."""
    return accuracy_gain(periods.contender(algo__tau=tau), periods.contender(algo__tau=1))


def e5(evidence: Evidence) -> Finding:
    """Compare the largest stable rate of Downpour in round-robin order with the formula."""
    claim = CLAIMS["E5"]
    checks: list[Check] = []
    for workers, study in zip(DELAYED_WORKERS, DELAYED, strict=True):
        bound = delayed_rate_bound(workers - 1)
        limit = delayed_rate_by_bisection(workers - 1)
        checks.append(claim.check("rate", f"p = {workers}: largest stable lr h, by roots", limit, bound))
        low, high = sorted(evidence[study.name].runs, key=_lr)
        shrinks, grows = growth_per_step(low), growth_per_step(high)
        checks += [
            claim.check("shrinks", f"p = {workers}, run at {DELAYED_BELOW} of it: growth per step", shrinks),
            claim.check("grows", f"p = {workers}, run at {DELAYED_ABOVE} of it: growth per step", grows),
        ]
    runs = [run for study in DELAYED for run in evidence[study.name].runs]
    staleness = max(abs(number(run.final("staleness_max")) - (run.nodes or 0) + 1) for run in runs)
    checks.append(claim.check("staleness", "runs: largest staleness less p - 1, largest difference", staleness))
    return claim.judged(checks)


def e6(evidence: Evidence) -> Finding:
    """Compare spectral radii of a round of EASGD and of ADMM with 1, over workers, rates and penalties."""
    claim = CLAIMS["E6"]
    pairs = [(p, rho) for p in ADMM_WORKERS for rho in PENALTIES]
    rates = (SMALL_RATE, EXAMPLE[1], 0.01, LARGE_RATE)
    elastic = [
        round_robin_radius(p, lr_h, lr_h * rho)
        for p, rho in pairs
        for lr_h in rates
        if lr_h * rho <= moving_rate_bound(lr_h)
    ]
    small, large = ([admm_radius(p, lr_h, rho) for p, rho in pairs] for lr_h in (SMALL_RATE, LARGE_RATE))
    checks = [
        claim.check(
            "stable", f"EASGD: largest radius less 1, lr h = {SMALL_RATE:g} to {LARGE_RATE:g}", max(elastic) - 1
        ),
        claim.check("grows", f"ADMM: smallest radius less 1, lr h = {SMALL_RATE:g}", min(small) - 1),
        claim.check("shrinks", f"ADMM: largest radius less 1, lr h = {LARGE_RATE:g}", max(large) - 1),
    ]
    p, lr_h, rho = EXAMPLE
    reason = (
        f"ADMM is unstable at small rates and stable at larger ones: its radius is {admm_radius(*EXAMPLE):.5f} with "
        f"p = {p}, lr h = {lr_h:g} and rho = {rho:g}. The moving rate of EASGD is lr rho."
    )
    return claim.judged(checks, reason)


def _validation_loss(run: Run) -> float:
    loss = number(run.final("test_loss"))
    return math.inf if math.isnan(loss) or run.outcome != "completed" else loss


def _lr(run: Run) -> float:
    return number(run.setting("optimizer.lr"))


def _width(rates: Sequence[float]) -> float:
    """Return how wide a range is: each rate of the grid stands for a factor of 2."""
    return float(2 ** len(rates))
