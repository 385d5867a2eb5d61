"""When a simulated run has marks, and whose accuracies they evaluate: `eval.workers` in between, all at both ends."""

from __future__ import annotations

from typing import Any

import pytest

from dsgd.engines.sim.simulated import restore, snapshot
from dsgd.engines.sim.simulation import Simulation
from tests.support.simulate import Outcome, experiment, simulate

DIGITS = ("algo=gossip", "nodes=5", "model=mlp", "data=digits", "batch_size=8", "seed=2", "budget.epochs=null")
DIGITS += ("eval.every_epochs=null", "optimizer.lr=0.1", "cluster.jitter=0.3")
SHORT = (*DIGITS, "budget.steps=12", "eval.every_steps=3")
OF_WORKERS = ("worker_accuracy_min", "worker_accuracy_mean", "worker_accuracy_max")


def of_workers(mark: dict[str, Any]) -> tuple[float | None, ...]:
    return tuple(mark[field] for field in OF_WORKERS)


def others(outcome: Outcome) -> list[dict[str, Any]]:
    """All that does not depend on `eval.workers`."""
    return [{field: value for field, value in mark.items() if field not in OF_WORKERS} for mark in outcome.marks]


@pytest.mark.parametrize(("workers", "gradients"), [("none", "auto"), ("1", "loop"), ("2", "auto")])
def test_the_first_and_the_last_mark_have_all_workers(workers: str, gradients: str) -> None:
    whole = simulate(*SHORT, "eval.workers=all", f"engine.gradients={gradients}")
    some = simulate(*SHORT, f"eval.workers={workers}", f"engine.gradients={gradients}")
    assert others(some) == others(whole)
    for end in (0, -1):
        assert of_workers(some.marks[end]) == of_workers(whole.marks[end])
        assert None not in of_workers(some.marks[end])
    assert len(some.marks) > 3
    for mark, of_all in zip(some.marks[1:-1], whole.marks[1:-1], strict=True):
        if workers == "none":
            assert of_workers(mark) == (None, None, None)
        else:
            least, mean, most = of_workers(mark)
            assert of_all[OF_WORKERS[0]] <= least <= mean <= most <= of_all[OF_WORKERS[2]]  # pyright: ignore
            assert (least == most) is (workers == "1")
    assert of_workers(some.summary) == of_workers(whole.marks[-1])


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (("budget.steps=1000", "eval.every_steps=3", "target.accuracy=0.5", "target.stop=true"), "completed"),
        (("budget.steps=40", "eval.every_steps=3", "optimizer.lr=1e9", "eval.diverged_factor=10"), "diverged"),
        (("budget.time_s=0.2", "eval.every_time_s=0.05"), "completed"),
        (("budget.time_s=0.2", "eval.every_time_s=0.03", "eval.every_steps=2"), "completed"),
    ],
    ids=["target", "divergence", "time", "time and steps"],
)
def test_a_mark_that_ends_the_run_has_all_workers(options: tuple[str, ...], status: str) -> None:
    whole, some = (simulate(*DIGITS, *options, f"eval.workers={workers}") for workers in ("all", "none"))
    assert some.summary["status"] == status
    assert str(others(some)) == str(others(whole))  # a loss may be not a number
    have = [None not in of_workers(mark) for mark in some.marks]
    assert have == [True, *[False] * (len(have) - 2), True]
    assert of_workers(some.marks[-1]) == of_workers(whole.marks[-1]) == of_workers(some.summary)


def test_data_without_classes_have_no_accuracies() -> None:
    found = simulate("experiment=quadratic", "algo=gossip", "nodes=4", "budget.steps=4", "eval.workers=all")
    assert {of_workers(mark) for mark in found.marks} == {(None, None, None)}


def test_a_run_that_goes_on_evaluates_the_same_workers_at_the_same_marks() -> None:
    options = (*SHORT, "eval.workers=2")
    whole, begun = simulate(*options), Simulation(experiment(*options))
    marks = list(begun.run(lambda: begun.progress.marks == 3))
    resumed = Simulation(begun.experiment)
    restore(resumed, snapshot(begun))
    assert len(marks) == 3 < len(whole.marks)
    assert marks + list(resumed.run()) == whole.marks
    assert resumed.summary() == whole.summary


def test_a_mark_at_a_multiple_that_division_misses_is_made_once() -> None:
    """1437 // 14.37 is 99, and yet 100 * 14.37 is 1437: the interval is a little more than it shows."""
    found = simulate(*DIGITS, "nodes=3", "batch_size=1", "budget.epochs=1", "eval.every_epochs=0.01")
    assert [mark["samples"] for mark in found.marks] == [0, *(-(-1437 * k // 100) for k in range(1, 101))]
