"""Verdicts on Lin et al. 2021 and Vogels et al. 2021, on runs that never ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsgd.report.contest import Contender
from studies.papers.lin2021 import ALPHAS, b12a, b12b
from studies.reproduction.logged import Logged
from studies.reproduction.verdict import Verdict
from tests.support import logged
from tests.support.each_row import each_row

PASS, FAIL, OPEN = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE
SEEDS = (-0.004, -0.002, 0.0, 0.002, 0.004)  # what a seed adds to all accuracies


def contenders(accuracies: Mapping[str, Sequence[float]], noise: float = 0.0, status: str = "completed") -> Logged:
    """Return what was logged of three algorithms. accuracies: of each, by ALPHAS. noise: what seeds add to D-PSGD's at
    the last of them. status: of D-PSGD's runs there."""
    entries = []
    for algo, levels in accuracies.items():
        for alpha, level in zip(ALPHAS, levels, strict=True):
            plain = algo == "dpsgd" and alpha == ALPHAS[-1]
            values = [level + seed * (1 + noise * plain) for seed in SEEDS]
            runs = [
                logged.run(algo, {"data.split_alpha": alpha}, test_accuracy=value, worker_accuracy_mean=value,
                           status=status if plain else "completed")
                for value in values
            ]  # fmt: skip
            entries.append(Contender(f"{algo} {alpha}", algo, 16, runs, {"optimizer.lr": 0.1}, None, 0))
    return logged.contest(*entries)


@each_row(
    ("gain", "noise", "verdict"),
    [
        (0.011, 0, PASS),
        (0.009, 0, FAIL),
        (0.011, 10, OPEN),  # the interval holds 0
    ],
)
def test_b12a_asks_for_a_point_where_data_differ_most(gain: float, noise: float, verdict: Verdict) -> None:
    of = {"dpsgd": (0.9, 0.9, 0.8), "corrected": (0.9, 0.9, 0.8 + gain), "relay": (0.9, 0.9, 0.9)}
    assert b12a({"shares": contenders(of, noise)}).verdict is verdict


def test_a_run_that_diverged_has_no_accuracy() -> None:
    of = {"dpsgd": (0.9, 0.9, 0.9), "corrected": (0.9, 0.9, 0.8), "relay": (0.9, 0.9, 0.9)}
    assert b12a({"shares": contenders(of, status="diverged")}).verdict is PASS


@each_row(
    ("dpsgd", "relay", "noise", "verdict"),
    [
        (0.1, 0.049, 0, PASS),
        (0.1, 0.051, 0, FAIL),
        (0.1, -0.01, 0, PASS),  # it gains
        (-0.01, -0.02, 0, FAIL),  # D-PSGD does not drop: nothing is to be halved
        (0.1, 0.049, 30, OPEN),  # or only on some seeds
    ],
)
def test_b12b_asks_for_half_the_drop(dpsgd: float, relay: float, noise: float, verdict: Verdict) -> None:
    of = {"dpsgd": (0.9, 0.9, 0.9 - dpsgd), "corrected": (0.9, 0.9, 0.9), "relay": (0.9, 0.9, 0.9 - relay)}
    assert b12b({"shares": contenders(of, noise)}).verdict is verdict
