"""When a target is reached, against the closed form of a curve whose every value is known."""

from __future__ import annotations

import math

import pytest

from dsgd.engines.sim.simulation import Simulation
from tests.support.cases import prepared
from tests.support.simulate import Outcome

LR, GRADIENT_S, EVERY = 0.1, 0.01, 4
FACTOR = (1 - LR) ** (2 * EVERY)  # of the loss, from mark to mark


def descent(*options: str) -> Outcome:
    """One worker on f(x) = (x - c)^2 / 2 without noise: x - c shrinks by 1 - lr in each step of so many seconds."""
    simulation = Simulation(
        prepared(
            *("experiment=quadratic", "algo=sync", "nodes=1", "precision=fp64", "data.dim=1", "data.noise=0"),
            *("data.spread=0", "optimizer.momentum=0", f"optimizer.lr={LR}", f"cluster.gradient_s={GRADIENT_S}"),
            *("budget.steps=40", f"eval.every_steps={EVERY}", *options),
        )
    )
    return Outcome(list(simulation.run()), simulation)


@pytest.mark.parametrize(
    ("share", "stop", "rule"),
    [(0.9, "true", "smoothed"), (0.5, "false", "smoothed"), (0.123, "true", "first"), (0.5, "true", "stable")],
)
def test_the_loss_of_a_gradient_descent(share: float, stop: str, rule: str) -> None:
    """The k-th mark has f_0 FACTOR^k, and between marks the curve is the straight line; once there it stays, so that
    all rules agree. By the smoothed curve it stops a mark later, when the mark behind the crossing has one behind it.
    """
    first_loss = descent().values("test_loss")[0]
    found = descent(f"target.loss={share * first_loss}", f"target.stop={stop}", f"target.crossing={rule}")
    k = math.floor(math.log(share) / math.log(FACTOR))
    between = (FACTOR**k - share) / (FACTOR**k - FACTOR ** (k + 1))
    mark_s = EVERY * GRADIENT_S
    summary = found.summary
    for name in ("time_to_target_s", "first_crossing_s", "stable_crossing_s"):
        assert summary[name] == pytest.approx((k + between) * mark_s, rel=1e-9)
    assert summary["target_resolution_s"] == pytest.approx(mark_s, rel=1e-9)
    assert summary["target_censored_at_s"] is None
    last = k + 1 + (rule == "smoothed")
    assert summary["time_s"] == pytest.approx(last * mark_s if stop == "true" else 40 * GRADIENT_S, rel=1e-9)


def test_a_start_at_the_target_is_a_crossing_without_width_and_one_never_reached_is_none() -> None:
    first_loss = descent().values("test_loss")[0]
    fields = ("time_to_target_s", "first_crossing_s", "stable_crossing_s", "target_resolution_s")
    assert [descent(f"target.loss={2 * first_loss}").summary[field] for field in fields] == [0, 0, 0, 0]
    missed = descent("target.loss=1e-9").summary
    assert [missed[field] for field in fields] == [None, None, None, None]
    assert missed["target_censored_at_s"] == missed["time_s"]


def test_a_run_that_diverges_has_not_stayed() -> None:
    """Below its first loss for a while would be a first crossing; its end counts for nothing."""
    found = descent("optimizer.lr=1e3", "target.loss=1e30")
    assert found.summary["status"] == "diverged"
    assert found.summary["first_crossing_s"] == 0
    names = ("time_to_target_s", "stable_crossing_s", "target_censored_at_s")
    assert [found.summary[name] for name in names] == [None, None, None]
