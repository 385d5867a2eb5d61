"""Verdicts at the real scale, on runs that never ran: each judge finds what its studies measure, and can fail."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import dsgd
from dsgd.record.reader import Run
from dsgd.report.contest import Contender
from studies.evidence.race import Pipelines
from studies.papers import papers
from studies.papers.real.tasks import SEEDS
from studies.reproduction.logged import Logged
from studies.reproduction.pages import finding_of
from studies.reproduction.paper import REAL, Claim, Study
from studies.reproduction.verdict import Verdict
from tests.support import logged
from tests.support.each_row import each_row

CONF = Path(dsgd.__file__).parents[1] / "conf"
CLAIMS = {claim.id: claim for paper in papers(REAL) for claim in paper.claims}
STUDIES = {claim.id: paper.studies for paper in papers(REAL) for claim in paper.claims}
GROUPS = ("algo", "topology", "optimizer", "schedule", "cluster")
PARTS, START = 100, 2.3


@dataclass(frozen=True)
class End:
    """What the runs of some settings came to. time_s, samples: to the target. apart: the distance of two workers.
    status: how they ended."""

    loss: float = 0.3
    accuracy: float = 0.9
    time_s: float = 10.0
    samples: float = 1000.0
    sent: float = 1e9
    apart: float = 1.0
    status: str = "completed"


Settings = Mapping[str, Any]  # dotted key, value; a group by its name
Outcome = Callable[[Settings], End]


def words_of(study: Study) -> dict[str, Any]:
    """Return the values of a study's words; of a grid a tuple."""
    words: dict[str, Any] = {}
    for word in study.at(REAL) or ():
        key, _, text = word.partition("=")
        listed = "," in text and text[0] not in "[{"
        words[key] = tuple(map(yaml.safe_load, text.split(","))) if listed else yaml.safe_load(text)
    return words


def points(study: Study) -> Iterator[dict[str, Any]]:
    """Yield the settings of every contender of a study, or of every run of one that is not tuned."""
    options = words_of(study)
    ways = options.pop("compare.contenders", [{}])
    axes = {key: value for key, value in options.items() if isinstance(value, tuple)}
    plain = {key: value for key, value in options.items() if key not in axes and not key.startswith("compare.")}
    for values in itertools.product(*axes.values()):
        for way in ways:
            yield {"nodes": 8, "seed": 0, **plain, **dict(zip(axes, values, strict=True)), **way}


@cache
def defaults(algo: str) -> dict[str, Any]:
    """Return the options of an algorithm."""
    return yaml.safe_load((CONF / "algo" / f"{algo}.yaml").read_text(encoding="utf-8"))


def run(settings: Settings, end: End) -> Run:
    """Return a run that came to an end, or to its target on the way."""
    seed = settings["seed"]
    racing = "target.loss" in settings
    target = float(settings.get("target.loss", 0.0))
    slower = 1 + 0.0001 * seed
    marks: list[dict[str, Any]] = [
        {
            "time_s": share * end.time_s * slower,
            "samples": share * end.samples,
            "test_loss": target * 2 ** (1 - share) if racing else end.loss + (START - end.loss) * (1 - share / 2),
            "pairwise_distance_median": end.apart,
        }
        for share in (0.0, 0.5, 1.0, 1.5, 2.0)
    ]
    marks[0]["test_loss"] = START
    summary = {
        "bytes_sent_total": end.sent, "test_accuracy": end.accuracy + 0.00001 * seed, "time_s": marks[-1]["time_s"],
        "test_fold_losses": [end.loss] * PARTS, "test_fold_accuracies": [end.accuracy] * PARTS,
        "status": end.status, "test_loss": marks[-1]["test_loss"], "samples": marks[-1]["samples"],
    }  # fmt: skip
    named = {f"{key}.name" if key in GROUPS else key: value for key, value in settings.items()}
    options = {f"algo.{key}": value for key, value in defaults(settings["algo"]).items()}
    shapes = {"data.name": "shapes", "data.test_size": 10_000}
    return logged.run(settings["algo"], {**options, **shapes, **named}, marks, **summary)


def of_study(study: Study, outcome: Outcome) -> Logged:
    """Return what would be logged of a study."""
    if not study.tuned:
        return logged.study(*(run(point, outcome(point)) for point in points(study)))
    contenders = []
    for number, point in enumerate(points(study)):
        runs = [run({**point, "seed": seed}, outcome(point)) for seed in range(SEEDS)]
        contenders.append(Contender(str(number), point["algo"], point["nodes"], runs, {"optimizer.lr": 0.1}, None, 1))
    return logged.contest(*contenders)


def verdict(id: str, outcome: Outcome) -> Verdict:
    """Return what a claim comes to where both tasks end alike."""
    claim: Claim = CLAIMS[id]
    evidence = {study.name: of_study(study, outcome) for study in STUDIES[id] if study.name in claim.needs}
    return finding_of(claim, evidence, Pipelines({}, {})).verdict


def e1(at: Settings, downpour: float) -> End:
    works = at["algo"] == "easgd" or at["optimizer.lr"] < downpour
    return End(loss=0.3 if works else START)


def e3(at: Settings, downpour: float) -> End:
    return End(time_s={"downpour": downpour, "easgd": 10.0 if at.get("algo.momentum") else 20.0}[at["algo"]])


def b1(at: Settings, samples: float) -> End:
    return End(time_s=40.0) if at["algo"] == "sync" else End(time_s=10.0, samples=samples)


def b5(at: Settings, loss: float) -> End:
    if at.get("algo.switch"):
        return End(accuracy=0.92)
    return End(loss=loss if at["algo"] == "localsgd" else 0.3)


def b6(at: Settings, gain: float) -> End:
    return End(loss=0.3 - (gain * at["algo.beta"] if at["nodes"] == 16 else 0.0))


def b7(at: Settings, loss: float) -> End:
    return End(loss=loss if at["algo"] == "diloco" else 0.3)


def b9(at: Settings, eager: float) -> End:
    return End(loss={"none": 0.3, "eager": eager, "delayed": 0.4}[at["algo.overlap"]])


def b10(at: Settings, loss: float) -> End:
    return End() if at["algo"] == "dpsgd" else End(loss=loss, sent=1e9 / 30)


def b12a(at: Settings, gain: float) -> End:
    return End(accuracy=0.7 + gain * (at["algo"] == "corrected"))


def b12b(at: Settings, relay: float) -> End:
    return End(accuracy=0.9 - (at["data.split_alpha"] < 1) * (relay if at["algo"] == "relay" else 0.2))


def t4(at: Settings, power: float) -> End:
    return End(apart=at["algo.tau"] * at["nodes"] ** power)


def t5(at: Settings, power: float) -> End:
    return End(apart=at["nodes"] ** (power if at["algo"] == "delayfree" else 0.5))


def l6(at: Settings, elastic: float) -> End:
    return End(time_s=elastic if at["algo"] == "easgd" else 10.0)


def l7(at: Settings, share: float) -> End:
    """Several workers have this share of a linear speed-up."""
    return End(time_s=10.0 if at["nodes"] == 1 else 10.0 / at["nodes"] / share)


def a2(at: Settings, limit: int, gain: float) -> End:
    """Up to so many workers are as good as one; without the rule all are worse by a gain."""
    ruled = "schedule.linear_scaling" in at
    return End(accuracy=(0.9 if at["nodes"] <= limit else 0.6) - gain * (at["nodes"] > 1 and not ruled))


def a3(at: Settings, gain: float) -> End:
    return End(accuracy=0.9 if "schedule.warmup_epochs" in at else 0.9 - gain)


HOLDS_AND_FAILS: dict[str, tuple[Outcome, Outcome]] = {
    "L6": (lambda at: l6(at, 20.0), lambda at: l6(at, 10.0)),
    "L7": (lambda at: l7(at, 0.95), lambda at: l7(at, 0.7)),
    "T4": (lambda at: t4(at, 0.02), lambda at: t4(at, 0.4)),
    "T5": (lambda at: t5(at, 0.02), lambda at: t5(at, 0.4)),
    "T7": (lambda at: End(), lambda at: End(accuracy=0.9 if at["nodes"] == 1 else 0.8)),
    "E1": (lambda at: e1(at, 0.1), lambda at: e1(at, math.inf)),
    "E3": (lambda at: e3(at, 40.0), lambda at: e3(at, 15.0)),
    "E4": (lambda at: End(), lambda at: End(accuracy=0.9 if at["algo.tau"] == 1 else 0.8)),
    "A2": (lambda at: a2(at, 8, 0.1), lambda at: a2(at, 8, 0.0)),
    "A3": (lambda at: a3(at, 0.1), lambda at: a3(at, 0.0)),
    "B1": (lambda at: b1(at, 1000.0), lambda at: b1(at, 1500.0)),
    "B4": (lambda at: End(), lambda at: End(accuracy=0.9 if at["algo"] == "sync" else 0.8)),
    "B6": (lambda at: b6(at, 0.1), lambda at: b6(at, 0.0)),
    "B7": (lambda at: b7(at, 0.3), lambda at: b7(at, 0.33)),
    "B9": (lambda at: b9(at, 0.3), lambda at: b9(at, 0.33)),
    "B10": (lambda at: b10(at, 0.3), lambda at: b10(at, 0.33)),
    "B11": (lambda at: End(), lambda at: End(accuracy=0.9 if at["algo"] == "sync" else 0.8)),
    "B12a": (lambda at: b12a(at, 0.05), lambda at: b12a(at, 0.0)),
    "B12b": (lambda at: b12b(at, 0.02), lambda at: b12b(at, 0.2)),
}


@each_row("id", HOLDS_AND_FAILS)
def test_a_claim_passes_where_it_holds_and_fails_where_it_does_not(id: str) -> None:
    holds, fails = HOLDS_AND_FAILS[id]
    assert (verdict(id, holds), verdict(id, fails)) == (Verdict.PASS, Verdict.FAIL)


def test_b5_cannot_be_tested_with_batches_that_harm_nothing() -> None:
    assert {verdict("B5", lambda at, loss=loss: b5(at, loss)) for loss in (0.4, 0.3)} == {Verdict.NOT_TESTABLE}


def test_distances_that_fall_keep_a_bound() -> None:
    assert verdict("T4", lambda at: t4(at, -0.4)) is Verdict.PASS


@each_row("id", ["T4", "T5"])
def test_runs_that_diverge_with_any_number_of_workers_say_nothing_of_it(id: str) -> None:
    def outcome(at: Settings) -> End:
        diverges = at["algo"] == "delayfree" and at["algo.tau"] == 32
        return End(status="diverged") if diverges else t5(at, 0.02)

    assert verdict(id, outcome) is Verdict.INCONCLUSIVE


@each_row(("limit", "outcome"), [(8, Verdict.PASS), (4, Verdict.FAIL), (128, Verdict.FAIL)])
def test_a2_wants_three_doublings_and_a_limit(limit: int, outcome: Verdict) -> None:
    assert verdict("A2", lambda at: a2(at, limit, 0.1)) is outcome
