"""Plain NumPy loops on the quadratic against real processes, from one worker to eight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dsgd.data.quadratic import Quadratic
from tests.support import reference
from tests.support.long import long_but
from tests.support.prefork import Prefork
from tests.support.reference import Array, Setting
from tests.support.simulated import assert_close
from tests.support.watched_algorithms import observed, seen

NODES = (1, 2, 3, 5, 8)
STEPS = 15

each_number = pytest.mark.parametrize("nodes", NODES)


def setting(nodes: int, momentum: float = 0.8) -> Setting:
    return Setting(
        nodes=nodes, steps=STEPS, lr=0.07, momentum=momentum, weight_decay=0.02, data=Quadratic(dim=5), seed=4
    )


def run(prefork: Prefork, folder: Path, s: Setting, algo: str, *options: str) -> Array:
    """The workers' vectors at the end, [nodes, dim]."""
    overrides = (
        "experiment=quadratic",
        "engine=dist",
        f"nodes={s.nodes}",
        f"seed={s.seed}",
        f"data.dim={s.data.dim}",
        f"budget.steps={s.steps}",
        "eval.every_steps=null",
        f"optimizer.lr={s.lr}",
        f"optimizer.momentum={s.momentum}",
        f"optimizer.weight_decay={s.weight_decay}",
    )
    ended = prefork.run(folder / "run", *observed(algo, folder), *overrides, *options)
    assert ended.summary["status"] == "completed", ended.err
    return seen(folder, "worker", s.nodes)[:, 0]


def large_batch(s: Setting) -> Array:
    """x after SGD with momentum whose gradient is the mean of all workers' at the same x, [dim]."""
    x, v = np.zeros(s.data.dim), np.zeros(s.data.dim)
    for step in range(s.steps):
        v = s.momentum * v + s.gradients(step, np.tile(x, (s.nodes, 1))).mean(axis=0)
        x = x - s.lr * v
    return x


def ring(nodes: int) -> Array:
    """W [nodes, nodes]: a third of oneself and of either neighbour, as far as they are different."""
    W = np.zeros((nodes, nodes))
    for i in range(nodes):
        members = sorted({(i - 1) % nodes, i, (i + 1) % nodes})
        W[i, members] = 1 / len(members)
    return W


@each_number
@pytest.mark.parametrize("overlap", ["true", "false"])
def test_sync_is_sgd_with_the_batch_of_all(prefork: Prefork, tmp_path: Path, nodes: int, overlap: str) -> None:
    s = setting(nodes)
    x = run(prefork, tmp_path, s, "sync", f"algo.overlap={overlap}")
    assert_close(x, np.tile(large_batch(s), (nodes, 1)), 1e-12)


@each_number
def test_dpsgd_is_a_product_with_w_and_a_step(prefork: Prefork, tmp_path: Path, nodes: int) -> None:
    """X = W X - lr G(X), without momentum, on the ring."""
    s = setting(nodes, momentum=0)
    W, X = ring(nodes), np.zeros((nodes, s.data.dim))
    for step in range(s.steps):
        X = W @ X - s.lr * s.gradients(step, X)
    assert_close(run(prefork, tmp_path, s, "dpsgd"), X, 1e-12)


@each_number
def test_delayfree_is_its_recursion(prefork: Prefork, tmp_path: Path, nodes: int) -> None:
    """X = mean of the cycle's start + what the cycle has added, with a last cycle that is shorter."""
    s = setting(nodes)
    assert_close(run(prefork, tmp_path, s, "delayfree", "algo.tau=8"), reference.delayfree(s, 8)[-1], 1e-12)


ALONE: dict[str, tuple[str, ...]] = {
    "sync": ("sync",),
    "dpsgd": ("dpsgd",),
    "dpsgd, after": ("dpsgd", "algo.gradient=after"),
    "compressed by no code": ("compressed", "algo.code=none"),
    "corrected": ("corrected",),
    "choco": ("choco",),
    "delayfree": ("delayfree", "algo.tau=4"),
    "localsgd": ("localsgd", "algo.tau=4"),
    "diloco without its outer optimiser": ("diloco", "algo.tau=4", "algo.olr=1", "algo.beta=0"),
    "diloco, eager": ("diloco", "algo.tau=4", "algo.olr=1", "algo.beta=0", "algo.overlap=eager"),
    "streaming without its outer optimiser": (
        "streaming",
        "algo.tau=4",
        "algo.fragments=2",
        "algo.delay=0",
        "algo.olr=1",
        "algo.beta=0",
    ),
    "noloco without its outer optimiser": ("noloco", "algo.tau=4", "algo.olr=1", "algo.beta=0"),
    "relay": ("relay",),
    "sgp, overlapped": ("sgp", "algo.overlap=2"),
    "gossip, pull": ("gossip", "+algo.own=15"),
    "gossip, push": ("gossip", "algo.mode=push", "+algo.own=15"),
    "adpsgd": ("adpsgd", "+algo.own=15"),
    "easgd without its spring": ("easgd", "algo.alpha=0", "+algo.own=15"),
}


SOON = ("sync", "gossip, pull", "streaming without its outer optimiser", "sgp, overlapped")


@pytest.mark.parametrize("case", long_but([ALONE[name] for name in SOON], ALONE.values()), ids=ALONE)
def test_one_worker_is_sgd(prefork: Prefork, tmp_path: Path, case: tuple[str, ...]) -> None:
    algo, *options = case
    s = setting(1)
    assert_close(run(prefork, tmp_path, s, algo, *options), large_batch(s)[None], 1e-12)


RULES: dict[str, Callable[[Setting], Array]] = {
    "sgd": lambda s: large_batch(Setting(**{**vars(s), "momentum": 0.0})),
    "momentum": large_batch,
}


@pytest.mark.parametrize("rule", RULES)
def test_one_worker_of_downpour_is_its_server_s_optimiser(prefork: Prefork, tmp_path: Path, rule: str) -> None:
    """The centre after every gradient has been taken at it and pushed to it."""
    s = setting(1)
    options = (f"algo.server_optimizer={rule}", "algo.server_momentum=0.8", "optimizer.momentum=0", "+algo.own=15")
    run(prefork, tmp_path, s, "downpour", *options)
    assert_close(seen(tmp_path, "server", 1), RULES[rule](s), 1e-12)
