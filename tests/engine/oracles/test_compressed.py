"""Compressed gradients: nothing is lost with error feedback, codes are as short and as true as their papers say."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.algorithms.compressed import CODES, Compressed
from dsgd.cluster import Cluster
from dsgd.compression import codes
from dsgd.compression.codes import low_rank_mean, split
from dsgd.data import Quadratic
from dsgd.engines.sim.simulation import Simulation
from dsgd.worker import Engine, Worker
from tests.support.cases import prepared
from tests.support.reference import Array, Setting
from tests.support.simulated import assert_close, run
from tests.support.timing import timed

SPREAD = np.random.default_rng(8).standard_normal(12)
WIDE = Quadratic(dim=12)


def topk(a: Array, k: int) -> Array:
    kept = np.argsort(-np.abs(a))[:k]
    q = np.zeros_like(a)
    q[kept] = a[kept]
    return q


def sign(a: Array) -> Array:
    return np.where(a >= 0, 1.0, -1.0) * np.abs(a).mean()


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize(("code", "said"), [("topk", lambda a: topk(a, 3)), ("sign", sign), ("none", lambda a: a)])
def test_agrees_with_a_numpy_loop(code: str, said: Callable[[Array], Array], feedback: bool) -> None:
    setting = Setting(steps=20, data=WIDE, nodes=3, momentum=0.8, nesterov=True, weight_decay=0.05, halve_at=9)
    if not feedback:
        setting = Setting(steps=20, data=WIDE, start=np.tile(SPREAD, (4, 1)))
    x, v, E, path = setting.xs()[0], np.zeros(12), np.zeros((setting.nodes, 12)), [setting.xs()]
    for step in range(setting.steps):
        a = E + setting.gradients(step, path[-1])
        q = np.array([said(row) for row in a])
        E = a - q if feedback else E
        g = q.mean(axis=0)
        v = setting.momentum * v + g
        x = x - setting.rate(step * setting.nodes) * (g + setting.momentum * v if setting.nesterov else v)
        path.append(np.tile(x, (setting.nodes, 1)))
    assert_close(run(setting, Compressed(code, share=0.25, feedback=feedback)).xs, np.array(path), 1e-10)


@pytest.mark.parametrize("code", CODES)
def test_what_a_code_leaves_out_is_late_and_not_lost(code: str) -> None:
    """x - lr mean e is what whole gradients make of it."""
    s = Setting(steps=25, data=WIDE, nodes=4)
    path = run(s, Compressed(code, share=0.2, levels=3, rank=1))
    xs = path.xs[:, 0]
    assert_close(path.xs, np.tile(xs[:, None], (1, 4, 1)), 0)
    gradients = np.cumsum([s.gradients(k, x).mean(axis=0) for k, x in enumerate(path.xs[:-1])], axis=0)
    workers = [node.worker for node in path.simulation.machine.nodes]
    after = np.mean([worker.kept["error"].numpy() for worker in workers], axis=0)
    assert_close(xs[-1] - s.lr * after, xs[0] - s.lr * gradients[-1], 1e-10)
    assert (np.abs(after).max() > 1e-3) == (code not in ("none", "powersgd"))  # a vector is no matrix


@settings(max_examples=40)
@given(st.integers(1, 200), st.integers(1, 40), st.integers(0, 2**31), st.sampled_from([torch.float32, torch.float64]))
def test_every_code_says_what_it_should_in_as_many_numbers(d: int, k: int, seed: int, dtype: torch.dtype) -> None:
    k, rng = min(k, d), np.random.default_rng(seed)
    a = torch.from_numpy(rng.standard_normal(d)).to(dtype)
    for code, levels in (("topk", 1), ("sign", 1), ("qsgd", 1 + seed % 300)):
        coder = codes.coder(code, d, k, levels, rng)
        packed = coder.encode(a)
        assert (packed.dtype, len(packed)) == (dtype, codes.packed_size(code, d, a.element_size(), k, levels))
        q = coder.decode(packed).double()
        left, whole = float((a - q).square().sum()), float(a.double().square().sum())
        if code == "topk":
            assert int((q != 0).sum()) <= k
            assert left <= (1 - k / d) * whole * (1 + 1e-6)
        elif code == "sign":
            assert left == pytest.approx(whole - float(a.double().abs().sum()) ** 2 / d, rel=1e-4, abs=1e-5 * whole)
        else:
            assert float((a - q).abs().max()) <= float(a.norm()) / levels * (1 + 1e-6)


@pytest.mark.parametrize(("d", "levels"), [(50_000, 127), (20_000, 1)])
def test_qsgd_divided_by_its_excess_leaves_out_less_than_there_is(d: int, levels: int) -> None:
    """Koloskova et al. 2019: |a - C(a) / w|^2 is at most (1 - 1 / w) |a|^2 in the mean; without w it may be more than
    |a|^2, and errors that are kept would grow."""
    rng = np.random.default_rng(4)
    a = torch.from_numpy(rng.standard_normal(d))
    coder, w = codes.coder("qsgd", d, 1, levels, rng), codes.excess("qsgd", d, levels)
    draws = [coder.decode(coder.encode(a)) for _ in range(20)]
    left = np.mean([float((a - q / w).square().sum()) for q in draws])
    assert left <= (1 - 1 / w) * 1.01 * float(a.square().sum())
    assert (float((a - draws[0]).square().sum()) > float(a.square().sum())) == (levels == 1)


@pytest.mark.parametrize("levels", [2**24 - 1, 2**31 - 1])
def test_the_largest_level_is_decoded_however_many_there_are(levels: int) -> None:
    a = torch.tensor([2.5, 0.0, 0.0])
    coder = codes.coder("qsgd", 3, 1, levels, np.random.default_rng(0))
    assert torch.allclose(coder.decode(coder.encode(a)), a, rtol=1e-6)


def power_sgd(layout: list[tuple[int, ...]], rank: int, vectors: list[Array], steps: int) -> list[Array]:
    """What workers with these constant vectors take for their mean, step by step, without feedback."""
    rng, engine = np.random.default_rng(), cast("Engine", None)
    xs = [torch.from_numpy(vector) for vector in vectors]
    workers = [Worker(i, len(xs), x, rng, engine, layout) for i, x in enumerate(xs)]
    means = []
    for _ in range(steps):
        running = [low_rank_mean(worker, worker.x, rank, seed=1) for worker in workers]
        answer, found = None, []
        while not found:
            requests = []
            for each in running:
                try:
                    requests.append(each.send(answer))
                except StopIteration as end:
                    found.append(end.value[1].numpy())
            answer = torch.stack([request.vector for request in requests]).mean(0) if requests else None
        assert all(np.array_equal(found[0], other) for other in found)
        means.append(found[0])
    return means


def test_power_sgd_of_the_workers_is_that_of_their_mean_and_exact_for_low_rank() -> None:
    layout, rng = [(6, 5), (7,), (3, 4, 2)], np.random.default_rng(2)
    assert split(layout, 2)[0] == [(0, 6, 5), (37, 3, 8)]
    vectors = [rng.standard_normal(61) for _ in range(3)]
    mean = np.mean(vectors, axis=0)
    for found, alone in zip(power_sgd(layout, 2, vectors, 4), power_sgd(layout, 2, [mean], 4), strict=True):
        assert_close(found, alone, 1e-10)
    assert_close(power_sgd(layout, 2, vectors, 1)[0][30:37], mean[30:37])  # whole
    low = [np.concatenate(((rng.standard_normal((6, 2)) @ rng.standard_normal((2, 5))).ravel(), np.zeros(31)))]
    noise = rng.standard_normal(61)
    assert_close(power_sgd(layout, 2, [low[0] + noise, low[0] - noise], 1)[0], low[0], 1e-9)


def test_a_rank_that_compresses_no_layer_is_refused_where_a_smaller_one_would() -> None:
    """For all shapes of two layers and a bias; a vector, or a layer that no rank makes smaller, is averaged."""
    sides = (1, 2, 3, 4, 7)
    layouts = [[(5,), (n, m), (k, 2, 2)] for n in sides for m in sides for k in sides] + [[], [()], [(9,)]]
    for layout in layouts:
        largest = max((rank for rank in range(1, 9) if split(layout, rank)[0]), default=8)
        for rank in range(1, 9):
            algo = Compressed(rank=rank)
            with nullcontext() if rank <= largest else pytest.raises(ValueError, match=f"^rank must be <= {largest} "):
                algo.check_layout(layout)
            Compressed(code="topk", rank=rank).check_layout(layout)  # which has no rank


def test_power_sgd_comes_to_the_best_approximation_by_its_ratio_of_singular_values() -> None:
    U, _ = np.linalg.qr(np.random.default_rng(4).standard_normal((8, 8)))
    V, _ = np.linalg.qr(np.random.default_rng(5).standard_normal((7, 7)))
    singular = np.array([4.0, 3.0, 1.5, 0.5, 0.3, 0.2, 0.1])
    best = (U[:, :2] * singular[:2]) @ V[:, :2].T
    M = (U[:, :7] * singular) @ V.T
    off = [np.linalg.norm(q.reshape(8, 7) - best) for q in power_sgd([(8, 7)], 2, [M.ravel()], 14)]
    assert off[12] / off[9] == pytest.approx((singular[2] / singular[1]) ** 6, rel=1e-3)


@pytest.mark.parametrize("code", ["topk", "qsgd"])
def test_codes_go_to_everybody_and_coding_takes_its_time(code: str) -> None:
    p, steps, d = 5, 4, 20
    cluster = Cluster(1.0, 8e6, 0.25, message_bytes=1e6)
    simulation = timed(Compressed(code, share=0.1, code_s=0.5), cluster, p, steps)
    share = codes.packed_size(code, d, simulation.machine.problem.start.element_size(), 2, 127) / d
    assert simulation.time_s == pytest.approx(steps * (1.0 + 0.5 + 0.25 + (p - 1) * share), rel=1e-9)
    sent = simulation.machine.network.bytes_sent(simulation.time_s)
    assert sent == pytest.approx([steps * (p - 1) * share * 1e6] * p, rel=1e-9)
    assert simulation.summary()["idle_fraction_max"] == pytest.approx(1 - 1.5 * steps / simulation.time_s)


def test_a_run_for_its_times_alone_takes_the_time_of_both_factors() -> None:
    words = (
        "algo=compressed", "nodes=4", "model=mlp", "budget.epochs=null", "budget.steps=3", "cluster.gradient_s=0.01",
    )  # fmt: skip
    runs = [
        Simulation(prepared(*words, "eval.every_epochs=null", f"engine.gradients={kind}")) for kind in ("loop", "none")
    ]
    for simulation in runs:
        list(simulation.run())
    (time_s, sent), alone = [(run.time_s, run.summary()["bytes_sent_total"]) for run in runs]
    assert alone == (pytest.approx(time_s, rel=1e-12), sent)
