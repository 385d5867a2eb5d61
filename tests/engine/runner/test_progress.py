"""How far a run has come is seen without a terminal, in few lines."""

from __future__ import annotations

from typing import Any

import pytest

from dsgd.runner.life import ProgressLine, completed_line
from dsgd.runner.plan import tightest
from tests.support.simulate import experiment


def mark(epoch: float, accuracy: float | None, time_s: float = 0.0) -> dict[str, Any]:
    return {"epoch": epoch, "time_s": time_s, "test_loss": 1.25, "test_accuracy": accuracy}


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def test_a_log_has_the_first_mark_the_last_and_one_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressLine(experiment("algo=gossip", "budget.epochs=20"), "gossip", "virtual")
    with progress:
        for epoch in range(9):
            progress.measured(mark(epoch, 0.1 * epoch), wall_s=10.4 * epoch)
    assert capsys.readouterr().err.splitlines() == [
        "gossip: epoch 0.0 of 20, accuracy 0.000, 0 s",
        "gossip: epoch 3.0 of 20, accuracy 0.300, 31 s",
        "gossip: epoch 6.0 of 20, accuracy 0.600, 62 s",
        "gossip: epoch 8.0 of 20, accuracy 0.800, 83 s",
    ]


def test_a_line_says_what_the_run_is_limited_by_and_measured_in(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ("budget.steps=null", "budget.time_s=4")
    progress = ProgressLine(experiment("experiment=quadratic", *limits), "sync", "wall")
    with progress:
        progress.measured(mark(0.5, None, time_s=1.5), wall_s=2.0)
    assert capsys.readouterr().err == "sync: epoch 0.5, 1.5 of 4 s of training, loss 1.25, 2 s\n"


def test_limits_are_whole_numbers_without_an_exponent(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ("budget.epochs=100000", "budget.time_s=1000000")
    progress = ProgressLine(experiment("algo=gossip", *limits), "gossip", "virtual")
    with progress:
        progress.measured(mark(1, 0.5), wall_s=2.0)
    assert "epoch 1.0 of 100,000, 0 of 1,000,000 s virtual, " in capsys.readouterr().err


def test_what_ended_a_run_is_counted_in_words() -> None:
    limited = experiment("algo=gossip", "budget.epochs=null", "budget.steps=1", "budget.samples=1000000")
    summary = {"ended_by": "budget.steps", "algo": "gossip", "steps": 1}
    assert completed_line(limited, summary) == "gossip: completed after 1 step, ended by budget.steps=1"
    assert tightest(limited) == (
        "budget.steps=1 ends the run after 1 step, before budget.samples=1000000; budget.steps=null lifts it"
    )
