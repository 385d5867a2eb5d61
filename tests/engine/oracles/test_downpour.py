"""Downpour: NumPy loops, with each rule of the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dsgd.algorithms.downpour import Downpour
from dsgd.cli.compose import composed
from dsgd.runner.plan import plan_run
from tests.support import reference
from tests.support.reference import Rule, Setting
from tests.support.simulated import assert_close, run

UNEVEN = (1.0, 1.7131, 0.6217, 2.3549)
FAST = Setting(gradient_s=UNEVEN, latency_s=0.1357, momentum=0.7, weight_decay=0.05)
SLOW = Setting(gradient_s=UNEVEN, latency_s=1.1357, momentum=0.7, nesterov=True, halve_at=5)


@pytest.mark.parametrize(
    ("setting", "n_push", "n_fetch"), [(FAST, 1, 1), (SLOW, 1, 3), (SLOW, 3, 1), (FAST, 3, 2), (Setting(steps=6), 2, 2)]
)
def test_agrees_with_a_numpy_loop(setting: Setting, n_push: int, n_fetch: int):
    """Algorithm 1 with a plain server: fetch, gradient, push of what has accumulated, local step."""
    path = run(setting, Downpour(n_push, n_fetch))
    xs, c = reference.downpour(setting, n_push, n_fetch, reference.server_sgd())
    assert_close(path.xs[-1], xs)
    assert_close(path.c[-1], c)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (Downpour(server_optimizer="momentum", server_momentum=0.6), lambda: reference.server_momentum(0.6)),
        (Downpour(2, 2, server_optimizer="adagrad"), reference.server_adagrad),
        (Downpour(2, 3), reference.server_sgd),
    ],
)
def test_server_rules_agree_with_a_numpy_loop(options: Downpour, rule: Callable[[], Rule]):
    """The server's optimiser acts on each push as it arrives, coordinate by coordinate, so shards change nothing."""
    s = Setting(gradient_s=UNEVEN, latency_s=0.2468, steps=20, halve_at=10)
    path = run(s, replace(options, servers=3))
    xs, c = reference.downpour(s, options.n_push, options.n_fetch, rule())
    assert_close(path.xs[-1], xs)
    assert_close(path.c[-1], c)


def test_momentum_that_no_server_sees_is_warned_of() -> None:
    """In one line beside the choice of the engine; so a sweep says it once."""
    line = ["experiment=quadratic", "nodes=3", "engine=sim"]
    for options, found in (
        (("algo=downpour", "optimizer.momentum=0.9"), "optimizer.momentum=0.9 has no effect with"),
        (("algo=downpour", "optimizer.momentum=0.9", "algo.n_fetch=3"), "optimizer.momentum=0.9 acts between two"),
        (("algo=downpour", "optimizer.momentum=0"), None),
        (("algo=gossip", "optimizer.momentum=0.9"), None),
    ):
        engine, *rest = plan_run(composed([*line, *options]), []).why.splitlines()
        assert engine.startswith("engine: sim")
        assert [line[: len(f"warning: {found}")] for line in rest] == ([] if found is None else [f"warning: {found}"])
