"""What a ladder says of measured scores, and which rates the next rung begins with."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from dsgd.comparison.contenders import Contender
from dsgd.comparison.ladder import RungScores, around_best, climb, outlook, ratios_of, rungs_of, samples_to_target
from dsgd.comparison.options import CompareOptions
from dsgd.comparison.preparation import SETTING, prepare
from dsgd.host.signals import Interruption
from dsgd.record.reader import find_runs
from dsgd.runner.values import ConfigError
from tests.support.each_row import each_row
from tests.support.records import write_record

SIZES = [16.0, 32.0, 64.0, 128.0]


def scores(label: str, *by_rung: float) -> RungScores:
    return RungScores(label, [[value, value * 1.01] for value in by_rung])


@each_row(
    ("by_rung", "ending"),
    [
        ((1.31, 1.24, 1.174, 1.111), "the ranking may flip"),
        ((2.0, 2.0, 2.0, 2.0), "the ranking stays"),
        ((0.5, 0.7, 0.98, 1.4), "the ranking stays"),
        ((0.5, 0.6, 0.71, 0.84), "the ranking flips"),
        ((0.6, 0.7, 0.82, 0.96), "the ranking of the largest is open"),
    ],
)
def test_a_verdict_says_what_is_forecast_measured_and_beyond(by_rung: tuple[float, ...], ending: str) -> None:
    said = outlook(scores("diloco over sync", *by_rung), SIZES)
    shown = ", ".join(f"{value * 1.01**0.5:.3g}" for value in by_rung[:-1])
    assert said.startswith(f"diloco over sync: {shown}, forecast ")
    assert f"measured {by_rung[-1] * 1.01**0.5:.3g} [" in said
    assert "extrapolated to 10 times the largest" in said
    assert said.endswith(ending)


def test_no_sentence_is_made_of_a_law_that_bends() -> None:
    said = outlook(scores("a over b", 1.0, 3.0, 1.0, 3.0), SIZES)
    assert "no forecast, since these ratios lie further from a power law than their seeds allow; measured 3.01" in said
    assert "extrapolated" not in said


@each_row("seed", [math.inf, 0.0])
def test_a_target_that_was_missed_or_never_ahead_has_no_law(seed: float) -> None:
    ratio = RungScores("a over b", [[1.0, 1.0], [1.0, seed], [1.0, 1.0], [2.0, 2.0]])
    why = "no forecast, since a seed has no score"
    assert outlook(ratio, SIZES) == f"a over b: 1, unknown, 1; {why}; measured 2 [2, 2]"


def test_ratios_are_paired_by_the_seed() -> None:
    first, second = RungScores("a", [[2.0, 9.0]]), RungScores("b", [[1.0, 3.0]])
    (ratio,) = ratios_of([first, second])
    assert (ratio.label, ratio.by_rung) == ("a over b", [[2.0, 3.0]])


def test_a_time_is_of_learning_and_of_the_cluster() -> None:
    first = RungScores("a", [[2.0, 8.0]] * 4, [[100.0, 400.0]] * 4)
    second = RungScores("b", [[1.0, 1.0]] * 4, [[200.0, 200.0]] * 4)
    (ratio,) = ratios_of([first, second])
    assert outlook(ratio, SIZES).endswith("; samples to the target 1, 1, 1, 1, seconds a sample 4, 4, 4, 4")


@each_row("samples", [(), [[math.nan] * 2] * 4, [[1.0, 1.0]] * 3 + [[1.0, math.inf]]])
def test_a_missed_target_has_no_samples(samples: list[list[float]]) -> None:
    ratio = RungScores("a over b", [[2.0, 2.0]] * 4, samples)
    assert "samples" not in outlook(ratio, SIZES)


@each_row(("level", "samples"), [(0.9, 120.0), (0.95, 160.0), (0.99, math.inf)])
def test_samples_lie_between_two_marks(level: float, samples: float, tmp_path: Path) -> None:
    """After 80 samples 0.85, after 160 0.95: half of the way is 120."""
    folder = write_record(tmp_path / "run", "sync", target=level, **{"target.crossing": "first"})
    marks = [
        {"time_s": time_s, "clock": "virtual", "samples": seen, "test_accuracy": accuracy}
        for time_s, seen, accuracy in ((0, 0, 0.1), (1, 80, 0.85), (3, 160, 0.95))
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(mark) + "\n" for mark in marks))
    assert samples_to_target(find_runs([tmp_path])[0]) == pytest.approx(samples)


def test_rates_begin_around_the_best_of_the_rung_before() -> None:
    contenders = [
        Contender(name, [], chosen={"optimizer.lr": rate} | extra, works=None, spent=0)
        for name, rate, extra in (("sync", 0.1, {}), ("gossip", 0.4, {"algo.tau": 8}))
    ]
    axes = {"optimizer.lr": [0.05, 0.8], "algo.tau": [4, 16], "algo.olr": [0.5, 1.0]}
    expected = {"optimizer.lr": [0.05, 0.8], "algo.tau": [4, 16], "algo.olr": [0.5, 1.0]}
    assert around_best(contenders, axes) == expected
    assert around_best(contenders[:1], {"optimizer.lr": [0.05, 0.8]}) == {"optimizer.lr": [0.05, 0.2]}


def test_a_list_of_one_number_is_a_size() -> None:
    (first, *_) = rungs_of({"model.hidden": [[16], [32], [64], [128]]})
    assert (first.name, first.size, first.settings) == ("hidden=16", 16, {"model.hidden": [16]})


def test_keys_of_a_ladder_grow_together() -> None:
    rungs = rungs_of({"model.width": [16, 32], "budget.epochs": [2, 4]})
    assert [rung.name for rung in rungs] == ["width=16", "width=32"]
    assert rungs[1].settings == {"model.width": 32, "budget.epochs": 4}


@each_row(
    ("ladder", "others", "message"),
    [
        ({"nodes": [2, 4, 8]}, {}, "ladder.nodes must be 4 ascending numbers or more, got [2, 4, 8]"),
        ({"nodes": [2, 4, 8, 8]}, {}, "ladder.nodes must be 4 ascending numbers or more, got [2, 4, 8, 8]"),
        (
            {"a": [[1], [2], [3], [4, 5]]},
            {},
            "ladder.a must be 4 ascending numbers or more, got [[1], [2], [3], [4, 5]]",
        ),
        ({"a": [[1], [2], [4], [3]]}, {}, "ladder.a must be 4 ascending numbers or more, got [[1], [2], [4], [3]]"),
        ({"nodes": 4}, {}, "ladder.nodes must be 4 ascending numbers or more, got 4"),
        ({"nodes": [1, 2, 3, 4], "seed": [1, 2, 3, 4, 5]}, {}, "ladder.seed must have 4 sizes, as ladder.nodes, got"),
        ({"nodes": [1, 2, 3, 4]}, {"whatif": {"nodes": [1]}}, "whatif must be null with compare.ladder, got"),
        ({"nodes": [1, 2, 3, 4]}, {"seeds": 1}, "ladder needs a key and compare.seeds >= 2, got"),
        ({}, {}, "ladder needs a key and compare.seeds >= 2, got {}"),
    ],
)
def test_a_ladder_that_is_none_is_refused(ladder: object, others: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        CompareOptions(ladder=ladder, **others)  # pyright: ignore[reportArgumentType]


def test_options_of_tuning_hold_on_every_rung(tmp_path: Path) -> None:
    """compare.tune is the ladder's, compare.tune_seeds is not."""
    small = ["algo=sync", "nodes=1", "model.hidden=[4]", "budget.epochs=0.1", "cluster.gradient_s=0.01"]
    tuning = ["compare.seeds=2", "compare.tune_seeds=2", "compare.tune={optimizer.lr: [0.1, 0.2]}"]
    words = [*small, *tuning, "compare.ladder={batch_size: [2, 4, 8, 16]}"]
    with climb(words, prepare(words), tmp_path, Interruption()):
        for size in (2, 4, 8, 16):
            kept = json.loads((tmp_path / f"batch_size={size}" / SETTING).read_text())["compare"]
            assert kept["tune_seeds"] == 2


def test_a_folder_has_the_forecast_of_its_seeds(tmp_path: Path) -> None:
    words = ["algo=sync,gossip", "nodes=2", "compare.tune={}", "compare.ladder={batch_size: [2, 4, 8, 16]}"]
    prepare([*words, "compare.seeds=2"]).claim(tmp_path)
    with pytest.raises(ConfigError, match=r"--folder must be of this comparison or new, got .* compare\.seeds=2"):
        prepare([*words, "compare.seeds=3"]).claim(tmp_path)


def test_older_folders_know_no_ladder(tmp_path: Path) -> None:
    prepared = prepare(["algo=sync,gossip", "nodes=2", "compare.tune={}"])
    prepared.claim(tmp_path)
    assert "ladder" not in json.loads((tmp_path / SETTING).read_text())["compare"]
