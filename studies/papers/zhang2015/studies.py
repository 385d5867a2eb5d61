"""The runs that test Zhang et al. 2015."""

from __future__ import annotations

from studies.papers.zhang2015.stability import delayed_rate_bound, moving_rate_bound
from studies.reproduction.paper import Study, listed

SMALL, FULL = ("experiment=zhang2015_small",), ("experiment=zhang2015_cifar10",)
BRIEF = (*SMALL, "budget.epochs=2.5", "eval.every_epochs=0.125")
SHORTER = (*SMALL, "budget.epochs=5", "eval.every_epochs=5")

RATES = tuple(0.00078125 * 2**i for i in range(12))  # to 1.6
LONG, SHORT = (16, 64), (1, 4)  # periods
WORKERS = (4, 8)
PERIODS = (1, 2, 4, 8, 16, 32, 64)

# The test loss of plain SGD on one worker after 2 of its 2.5 epochs, the median of five seeds (0.71452): study `alone`.
TARGET = 0.7145

CURVATURE_RATES = (0.5, 1.0, 1.5)  # rate times curvature, for the round robin
BELOW, ABOVE = 0.99, 1.05  # of its bound
LINE = ("engine=sim", "experiment=quadratic", "data.dim=1", "data.spread=0", "data.noise=0")
DELAYED_WORKERS = (2, 3, 4, 8, 16)
DELAYED_BELOW, DELAYED_ABOVE = 0.99, 1.01
# A vector takes a hundredth of a gradient: equal workers reach the server one after the other.
IN_TURN = ("cluster.gradient_s=1", "cluster.bandwidth=800", "cluster.message_bytes=1", "cluster.latency_s=0")


def _rates(algo: str, periods: tuple[int, ...], seeds: int) -> tuple[str, ...]:
    """Return the words of a grid of rates, for each period and number of workers."""
    period = f"{'algo.tau' if algo == 'easgd' else 'algo.n_push'}={listed(periods)}"
    return (
        f"algo={algo}",
        period,
        *(() if algo == "easgd" else ("algo.n_fetch=${algo.n_push}",)),
        f"nodes={listed(WORKERS)}",
        f"optimizer.lr={listed(RATES)}",
        f"seed={listed(tuple(range(seeds)))}",
        "data.validation=0.1",
    )


def round_robin(lr_h: float) -> Study:
    """Return EASGD on a line in round-robin order, below and above the bound of its moving rate."""
    alphas = tuple(side * moving_rate_bound(lr_h) for side in (BELOW, ABOVE))
    return Study(
        f"round_robin_{lr_h:g}",
        (
            "algo=easgd",
            "algo.variant=round_robin",
            "algo.tau=1",
            f"algo.alpha={listed(alphas)}",
            "nodes=3,4,8,16",
            f"optimizer.lr={lr_h:g}",
            *LINE,
            "budget.steps=600",
            "eval.every_steps=10",
        ),
    )


def delayed(workers: int) -> Study:
    """Return Downpour on a line in round-robin order, below and above the bound of its rate."""
    rates = tuple(side * delayed_rate_bound(workers - 1) for side in (DELAYED_BELOW, DELAYED_ABOVE))
    return Study(
        f"delayed_{workers}",
        (
            "algo=downpour",
            f"nodes={workers}",
            f"optimizer.lr={listed(rates)}",
            *LINE,
            *IN_TURN,
            "budget.steps=1000",
            "eval.every_steps=20",
        ),
    )


ROUND_ROBIN = tuple(round_robin(lr_h) for lr_h in CURVATURE_RATES)
DELAYED = tuple(delayed(workers) for workers in DELAYED_WORKERS)

STUDIES = (
    Study("easgd_rates", _rates("easgd", LONG, 5), SHORTER, FULL),
    Study("downpour_rates", _rates("downpour", LONG, 5), SHORTER, FULL),
    Study("easgd_rates_short", _rates("easgd", SHORT, 1), SHORTER, FULL),
    Study("downpour_rates_short", _rates("downpour", SHORT, 1), SHORTER, FULL),
    *ROUND_ROBIN,
    Study("alone", ("algo=sync", "nodes=1"), BRIEF, FULL, tuned=True),
    Study(
        "race",
        (
            "compare.contenders=[{algo: easgd, algo.tau: 10, algo.momentum: 0.9}, {algo: easgd, algo.tau: 10}, "
            "{algo: downpour, algo.n_push: 10, algo.n_fetch: 10}]",
            f"nodes={listed(WORKERS)}",
        ),
        (*SMALL, f"target.loss={TARGET:g}", "eval.every_epochs=0.2"),
        (*FULL, "target.accuracy=0.8"),
        tuned=True,
    ),
    Study(
        "periods",
        ("algo=easgd", f"algo.tau={listed(PERIODS)}", "nodes=8", "compare.seeds=9"),
        (*SMALL, "data.test_size=4000", "eval.every_epochs=0.5"),
        FULL,
        tuned=True,
    ),
    Study(
        "periods_later",
        ("algo=easgd", "algo.tau=1,4", "nodes=8"),
        (*SMALL, "data.test_size=4000", "budget.epochs=40", "eval.every_epochs=10"),
        (*FULL, "budget.epochs=640"),
        tuned=True,
    ),
    *DELAYED,
)
