"""DiLoCo, SlowMo, BMUF: a NumPy loop, and the warning of a rate that is too high."""

from __future__ import annotations

import numpy as np
import pytest

from dsgd.algorithms.diloco import DiLoCo
from tests.support import reference
from tests.support.reference import Array, Setting
from tests.support.simulated import assert_close, run

SPREAD = np.random.default_rng(8).standard_normal((4, 5))
START = np.tile(SPREAD[0], (4, 1))


PLAIN = Setting(steps=13, start=START)
DECAYING = Setting(steps=12, momentum=0.8, nesterov=True, weight_decay=0.05, halve_at=6)


@pytest.mark.parametrize(
    ("outer", "tau", "setting"),
    [
        ("nesterov", 3, PLAIN),
        ("nesterov", 5, DECAYING),
        ("heavy_ball", 1, PLAIN),
        ("heavy_ball", 3, DECAYING),
        ("slowmo", 50, PLAIN),
        ("slowmo", 3, DECAYING),
    ],
)
def test_agrees_with_a_numpy_loop(setting: Setting, tau: int, outer: str) -> None:
    path = run(setting, DiLoCo(tau, outer, olr=0.6, beta=0.7))
    xs, centres = reference.diloco(setting, tau, outer, 0.6, 0.7)
    assert_close(path.xs, xs)
    assert_close(path.c, centres[:, 0])


def test_hiding_the_mean_changes_no_parameter() -> None:
    hidden, plain = (run(PLAIN, DiLoCo(3, overlap=overlap)) for overlap in ("backward", "none"))
    assert np.array_equal(hidden.xs, plain.xs)
    assert np.array_equal(hidden.c, plain.c)


def theta(s: Setting, algo: DiLoCo) -> Array:
    """Return the output model at the end."""
    return run(s, algo, mark_samples=s.samples).c[-1]


def test_the_rate_after_the_last_step_counts_for_no_round() -> None:
    """That of a cosine is 0 there."""
    algo = DiLoCo(4, "slowmo", 1.0, 0.6, "delayed")
    assert_close(theta(Setting(steps=24, halve_at=24), algo), theta(Setting(steps=24), algo), 0)


def test_an_outer_rate_above_the_limit_is_a_warning() -> None:
    assert DiLoCo().warning(4, 0.0) is None
    assert DiLoCo(olr=1.3).warning(4, 0.0) is None
    assert DiLoCo(olr=DiLoCo().limit(4)).warning(4, 0.0) is None
    assert DiLoCo(olr=1.4).warning(4, 0.0) == (
        "algo.olr=1.4 is too much where rounds are long: with algo.beta=0.9 at most 1.35714 is stable"
    )
    assert DiLoCo(outer="slowmo", olr=3.7).warning(4, 0.0) is None
    assert DiLoCo(olr=0.7, overlap="eager").warning(2, 0.0) is None
    assert DiLoCo(olr=0.7, overlap="eager").warning(4, 0.0) == (
        "algo.olr=0.7 is too much where rounds are long: "
        "with algo.beta=0.9 and algo.overlap=eager at most 0.415974 is stable"
    )


def test_a_model_that_is_smaller_than_a_chunk_gets_a_warning() -> None:
    sparse = DiLoCo(code="sparse")
    assert sparse.check_layout([(16, 10), (20,)]) == (
        "algo.kept=64 sends 0.356 of the entries, not 0.0156: "
        "algo.chunk=4096 is more than the 180 parameters of this model"
    )
    assert "sends 1 of" in str(sparse.check_layout([(8,)]))
    assert sparse.check_layout([(64, 64)]) is None
    assert DiLoCo(code="sparse", kept=4096, bits=32).check_layout([(8,)]) is None
    assert DiLoCo().check_layout([(8,)]) is None
