"""The null tests of a paper's page are between the two names of one algorithm, and their spread is the judges'."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dsgd.report.contest import Contender
from studies.papers import papers
from studies.reproduction import archive, paired
from studies.reproduction.null_tests import null_tests
from studies.reproduction.paper import REAL
from studies.reproduction.protocol import null_factor
from tests.support import logged
from tests.support.contenders import contender

RESULTS = Path(__file__).parents[3] / "results" / "papers"


def under(other: Contender, key: str, value: object) -> Contender:
    """Return a contender whose runs have another value of a key of the algorithm."""
    runs = [replace(run, config=run.config | {"algo": {**run.config["algo"], key: value}}) for run in other.runs]
    return replace(other, runs=runs)


def test_the_first_name_has_all_settings_but_seed_and_tuned_values() -> None:
    first, others = contender("sync, first", [10.0, 12.0]), [contender("sync, eight", [1.0, 1.0], nodes=16)]
    others.append(contender("gossip", [1.0, 1.0]))
    others.append(under(contender("sync, backups", [1.0, 1.0]), "backups", 2))
    second = under(contender("sync", [11.0, 11.0], lr=0.2), "backups", 0)
    studies = {"race": logged.contest(*others, under(first, "backups", 0)), "null_race": logged.contest(second)}
    test, of_samples = null_tests(studies)
    assert (test.study, test.contender) == ("null_race", "sync")
    assert of_samples.value.median == pytest.approx(test.value.median)  # a second takes equally many samples
    assert test.value == paired.ratio(first, second, rule=None)
    assert test.spread == null_factor(test.value) > 1


def test_without_a_target_losses_and_accuracies_are_compared() -> None:
    studies = {
        "ends": logged.contest(contender("sync", [0.30, 0.32], target=None)),
        "null_ends": logged.contest(contender("sync", [0.31, 0.31], target=None)),
    }
    loss, accuracy = null_tests(studies)
    assert loss.value.median == pytest.approx(1.0)
    assert loss.spread > 1
    assert accuracy.spread == pytest.approx(0.0)


def test_a_name_whose_first_was_not_run_has_none() -> None:
    assert not list(null_tests({"null_race": logged.contest(contender("sync", [10.0, 12.0]))}))


def test_the_spread_on_a_page_is_what_judges_add() -> None:
    (paper,) = (paper for paper in papers(REAL) if paper.key == "lian2017_real")
    rows = archive.read(archive.path_of(paper.key, RESULTS))
    studies = {name: archive.logged_of(of_study) for name, of_study in rows.items()}
    first, second = (studies[f"{name}_shapes"].contender(nodes=8) for name in ("speed_up", "null_speed_up"))
    spreads = [test.spread for test in null_tests(studies)]
    assert null_factor(paired.ratio(first, second, rule=None)) in spreads
