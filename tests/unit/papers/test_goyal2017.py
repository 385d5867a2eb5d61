"""Claims of Goyal et al. 2017 on runs made by hand."""

from __future__ import annotations

from collections.abc import Callable

from studies.papers.goyal2017 import a2, a3, largest_good_batch
from studies.reproduction.logged import Logged
from studies.reproduction.verdict import Verdict
from tests.support.each_row import each_row
from tests.support.logged import run, study

BATCHES = (32, 64, 128, 256, 512)


def grid(accuracy: Callable[[int], float], seeds: int = 3, status: str = "completed") -> Logged:
    """Return runs with 8 workers, of a batch each. accuracy: of all workers' batch; seeds differ by 0.001."""
    return study(
        *(
            run(
                settings={"batch_size": batch // 8, "seed": seed},
                marks=[{"test_accuracy": accuracy(batch) + 0.001 * seed}],
                status=status if batch == BATCHES[-2] else "completed",
            )
            for batch in BATCHES
            for seed in range(seeds)
        )
    )


def tuned(accuracy: float) -> Logged:
    """Return runs with a batch of 256."""
    return study(
        *(
            run(settings={"batch_size": 32, "seed": seed}, marks=[{"test_accuracy": accuracy + 0.001 * seed}])
            for seed in range(3)
        )
    )


def flat_until(last: int, lost: float = 0.1) -> Callable[[int], float]:
    return lambda batch: 0.8 if batch <= last else 0.8 - lost


def test_a2_passes_with_a_knee_after_three_doublings_and_a_use_of_the_rule_at_it() -> None:
    """The knee is where accuracy is last kept: 256, three doublings of 32."""
    scaled = grid(flat_until(256))
    found = {"scaled": scaled, "ladder": scaled, "unscaled": grid(lambda batch: 0.7), "own_rate": tuned(0.7)}
    assert a2(found).verdict is Verdict.PASS
    assert a2(found | {"unscaled": grid(lambda batch: 0.81)}).verdict is Verdict.FAIL  # no use
    assert a2(found | {"scaled": grid(lambda batch: 0.8)}).verdict is Verdict.FAIL  # no knee
    early = grid(flat_until(128))
    assert a2(found | {"scaled": early, "ladder": early}).verdict is Verdict.FAIL  # two doublings


@each_row(("accuracy", "verdict"), [(0.796, Verdict.EXPLAINED), (0.794, Verdict.FAIL)])
def test_a2_that_fails_is_explained_where_the_batch_has_its_accuracy_with_a_rate_of_its_own(
    accuracy: float, verdict: Verdict
) -> None:
    early = grid(flat_until(128))
    found = {"scaled": early, "ladder": early, "unscaled": grid(lambda batch: 0.6), "own_rate": tuned(accuracy)}
    assert a2(found).verdict is verdict


def test_the_largest_good_batch_is_the_last_before_the_first_that_loses_more_than_half_a_point() -> None:
    assert largest_good_batch(grid(flat_until(128))) == 128
    assert largest_good_batch(grid(flat_until(128, lost=0.004))) == BATCHES[-1]
    assert largest_good_batch(grid(lambda batch: 0.8 if batch != 64 else 0.7)) == 32


@each_row(
    ("lost", "status", "verdict"),
    [
        (0.006, "completed", Verdict.PASS),
        (0.004, "completed", Verdict.FAIL),
        (0.0, "diverged", Verdict.PASS),
        (-0.01, "completed", Verdict.FAIL),
    ],
)
def test_a3_needs_half_a_point_or_a_seed_that_diverges(lost: float, status: str, verdict: Verdict) -> None:
    scaled = grid(flat_until(256))
    abrupt = grid(lambda batch: flat_until(256)(batch) - lost, status=status)
    found = {"scaled": scaled, "ladder": scaled, "abrupt": abrupt}
    assert a3(found | {"between": between()}).verdict is verdict


def between() -> Logged:
    """Return runs with other batches, with and without warm-up."""
    return study(
        *(
            run(settings={"batch_size": batch // 8, "seed": seed, "schedule.warmup_epochs": epochs})
            for batch in (160, 384, 448)
            for epochs in (0, 5)
            for seed in range(3)
        )
    )
