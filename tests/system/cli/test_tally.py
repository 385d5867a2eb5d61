"""One bar for all runs of a command: how many have ended, how many are expected, how long it takes yet, who runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dsgd.cli.tally import EVERY_S, Tally, duration
from dsgd.comparison.tuning import Axis, Outcome, Values, best, expected_values, next_values
from tests.support.command import on_a_terminal, shell

COMPARED = (
    "algo=sync,gossip nodes=2 cluster.gradient_s=0.01 budget.epochs=1 target.accuracy=0.5 "
    "compare.seeds=2 compare.tune_values=3"
)


class Clock:
    """A clock that is put forward by hand."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def test_a_log_has_a_line_every_half_minute_and_one_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    tally = Tally("study 2 of 5", clock)
    tally.expect(20, about=True)
    tally.count_before(2)
    with tally:
        for number in range(8):
            tally.begin(f"sync seed={number}", lambda: "epoch 3.0, accuracy 0.712")
            clock.now_s += 0.4 * EVERY_S
            tally.show()
            tally.end(f"sync seed={number}")
    clock.now_s += 1000.0  # nothing runs between two blocks
    tally.expect(10)
    with tally:
        tally.begin("gossip", lambda: "")
        tally.begin("easgd", lambda: "")
        clock.now_s += EVERY_S
        tally.show()
        tally.end("gossip")
    tally.close()
    assert capsys.readouterr().err.splitlines() == [
        "study 2 of 5, 4 of about 20 runs, running: sync seed=2 (epoch 3.0, accuracy 0.712)",
        "study 2 of 5, 7 of about 20 runs, 3 min left, running: sync seed=5 (epoch 3.0, accuracy 0.712)",
        "study 2 of 5, 10 of 10 runs, running: gossip; easgd",
        "study 2 of 5: 9 runs in 2 min, 2 were there before",
    ]


def test_the_bar_never_goes_back_though_more_runs_are_expected() -> None:
    tally = Tally()
    shares = []
    with tally:
        for expected in (4, 4, 40, 40, 5, 5):
            tally.expect(expected)
            tally.begin("sync", str)
            tally.end("sync")
            shares.append(tally._share)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0  # six have ended, of five that were expected


@pytest.mark.parametrize(("best_rate", "fine"), [(0.05, False), (0.8, True), (1.6, False)])
def test_the_estimate_of_a_search_is_an_upper_bound_unless_it_leaves_its_grid_twice(
    best_rate: float, fine: bool
) -> None:
    """The number of runs is estimated before the first of them, and falls when a search ends early."""
    axes, found = [Axis("optimizer.lr", 0.05, 0.8)], dict[Values, Outcome]()
    first = expected_values(axes, found, 16, fine)
    while values := next_values(axes, found, 16, fine):
        assert expected_values(axes, found, 16, fine) >= len(values)
        found |= {value: Outcome(abs(value[0] / best_rate - 1) + 1, 0.0) for value in values}
    assert best(found) == (best_rate,)
    assert len(found) <= first + (best_rate > 0.8)
    assert expected_values(axes, found, 16, fine) == 0
    assert expected_values([], {}, 16) == 0
    assert expected_values(axes, {}, 3) == 3


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (91, "2 min"), (5340, "89 min"), (5400, "1 h 30 min")]
)
def test_a_duration_has_the_units_that_suit_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_comparison_is_about_ten_lines(tmp_path: Path) -> None:
    """However many runs it makes: nothing is said of each."""
    result = shell(f"dsgd-compare {COMPARED}", tmp_path)
    assert result.returncode == 0, result.stderr
    printed = result.stderr.splitlines()
    assert len(printed) <= 10, printed
    assert re.fullmatch(r"\d+ runs in \d+ s", printed[-1])
    assert int(printed[-1].split()[0]) == len(list((tmp_path / "comparison").rglob("summary.json")))


def test_a_terminal_shows_one_bar_with_who_is_running_that_is_gone_at_the_end(tmp_path: Path) -> None:
    text = on_a_terminal(f"dsgd-compare {COMPARED}", tmp_path)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    for part in (" of about ", " left", "running: ", "tuning sync lr=", "measuring gossip lr="):
        assert part in plain
    assert [int(count) for count in re.findall(r"(\d+) of (?:about )?\d+ runs", plain)] == sorted(
        int(count) for count in re.findall(r"(\d+) of (?:about )?\d+ runs", plain)
    )
    whole = [line for line in plain.replace("\r", "\n").splitlines() if re.fullmatch(r"\d+ runs in \d+ s *", line)]
    assert len(whole) == 1
    assert "epoch" not in plain.rpartition(" runs in ")[2]
