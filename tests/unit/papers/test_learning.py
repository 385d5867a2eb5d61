"""Verdicts on claims about learning, on pipelines that never ran: each judge finds what it compares, and can fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from studies.evidence.forecast import forecast
from studies.evidence.pipeline import Pipelines
from studies.evidence.trial import Clock, Trial
from studies.papers import papers
from studies.reproduction.criterion import ClaimKind
from studies.reproduction.pages import finding_of, findings_on_tasks
from studies.reproduction.verdict import Verdict
from tests.support.each_row import each_row
from tests.support.power_laws import End, world

CLAIMS = {claim.id: claim for paper in papers() for claim in paper.claims if claim.needs}
World = Callable[[Trial], End]
BAD = 50.0  # times a loss


def has(trial: Trial, *words: str) -> bool:
    return all(word in trial.contender.split() for word in words)


def is_algo(trial: Trial, algo: str) -> bool:
    return trial.contender.split()[0] == algo


def verdict(id: str, end_of: World, step_s: Callable[[Clock], float] = lambda _: 1.0) -> Verdict:
    return finding_of(CLAIMS[id], {}, findings_on_tasks(CLAIMS[id], world(end_of, step_s))).verdict


def worse(algo: str, factor: float, *words: str) -> World:
    """The losses of an algorithm with these options are higher by a factor."""
    return lambda trial: End(worse=factor if is_algo(trial, algo) and has(trial, *words) else 1.0)


def less_accurate(algo: str, lost: float, *words: str) -> World:
    return lambda trial: End(accuracy=0.9 - (lost if is_algo(trial, algo) and has(trial, *words) else 0.0))


def slower(**steps: float) -> World:
    """Algorithms need so many steps to the target; others 1,000."""
    return lambda trial: End(steps.get(trial.contender.split()[0], 1000.0))


def e1(downpour: int) -> World:
    """Downpour learns up to a level of the rate, EASGD up to level 4."""

    def end(trial: Trial) -> End:
        return End(steps=10.0, worse=BAD if trial.level > (downpour if is_algo(trial, "downpour") else 4) else 0.1)

    return end


def e3(plain: float) -> World:
    def end(trial: Trial) -> End:
        if is_algo(trial, "downpour"):
            return End(4000.0)
        return End(500.0 if has(trial, "momentum=0.99") else plain)

    return end


def apart(power: float, other: float = 0.5) -> World:
    return lambda trial: End(apart=trial.nodes ** (power if is_algo(trial, "delayfree") else other))


def a2(limit: int, gain: float) -> World:
    """Up to so many workers are as good as one; without the rule all are worse by a gain."""

    def end(trial: Trial) -> End:
        ruled = "schedule.linear_scaling=true" in trial.contender
        return End(accuracy=(0.9 if trial.nodes <= limit else 0.6) - gain * (trial.nodes > 1 and not ruled))

    return end


def a3(gain: float) -> World:
    return lambda trial: End(accuracy=0.9 if "warmup" in trial.contender else 0.9 - gain)


def b6(gain: float) -> World:
    return lambda trial: End(worse=1 - gain * (trial.nodes == 16) * (0 if has(trial, "beta=0") else 1))


def b9(eager: float) -> World:
    losses = {"overlap=none": 1.0, "overlap=eager": eager, "overlap=delayed": 1.3}
    return lambda trial: End(worse=losses[trial.contender.split()[1]])


def b12b(relay: float) -> World:
    def end(trial: Trial) -> End:
        skewed = has(trial, "data.split_alpha=0.1")
        return End(accuracy=0.9 - skewed * (relay if is_algo(trial, "relay") else 0.2))

    return end


def d7(growth: float) -> World:
    def end(trial: Trial) -> End:
        large = has(trial, "batch_size=32") or has(trial, "batch_size=64")
        return End(worse=growth if large and is_algo(trial, "sync") else 1.0)

    return end


def d8(adamw: float) -> World:
    return worse("diloco", adamw, "optimizer=adamw")


def d12(turned: float) -> World:
    return lambda trial: End(worse=turned if "c_ok" in trial.contender else 1.0)


def d5(short: float, long: float) -> World:
    def end(trial: Trial) -> End:
        return End(worse=(short if has(trial, "tau=1") else long) if has(trial, "beta=0.9") else 1.0)

    return end


HOLDS_AND_FAILS: dict[str, tuple[World, World]] = {
    "L1": (worse("dpsgd", 1.0), worse("dpsgd", 1.1)),
    "L6": (slower(easgd=2000.0), slower(easgd=1000.0)),
    "T4": (apart(0.02), apart(0.4)),
    "T5": (apart(0.02), apart(0.4)),
    "T7": (less_accurate("sync", 0.0), less_accurate("delayfree", 0.1)),
    "E1": (e1(-4), e1(4)),
    "E3": (e3(1000.0), e3(500.0)),
    "E4": (less_accurate("easgd", 0.0), lambda trial: End(accuracy=0.9 if has(trial, "tau=1") else 0.8)),
    "A2": (a2(8, 0.1), a2(8, -0.1)),
    "A3": (a3(0.1), a3(0.0)),
    "B4": (less_accurate("sgp", 0.0), less_accurate("sgp", 0.1)),
    "B6": (b6(0.1), b6(0.0)),
    "B7": (worse("diloco", 1.0), worse("diloco", 1.1)),
    "B9": (b9(1.0), b9(1.1)),
    "B10": (worse("choco", 1.0), worse("choco", 1.1)),
    "B11a": (less_accurate("compressed", 0.0), less_accurate("compressed", 0.1)),
    "B12a": (less_accurate("dpsgd", 0.05), less_accurate("dpsgd", 0.0)),
    "B12b": (b12b(0.02), b12b(0.2)),
    "D4": (lambda trial: End(worse=1.0 if has(trial, "delay=0") else 0.95), worse("streaming", 1.1, "delay=1")),
    "D5": (d5(1.2, 0.9), d5(1.0, 0.9)),
    "D6": (worse("sync", 1.1), worse("diloco", 1.1)),
    "D7": (d7(1.1), d7(0.9)),
    "D8": (d8(1.1), d8(0.9)),
    "D9": (worse("gasloc", 0.95), worse("gasloc", 1.05)),
    "D10": (worse("gasloc", 1.0), worse("gasloc", 1.1)),
    "D11": (slower(gasloc=500.0), slower(gasloc=1000.0)),
    "D12": (d12(0.95), d12(1.05)),
    "D13": (slower(asyncdiloco=500.0), slower(asyncdiloco=1000.0)),
}


@each_row("id", HOLDS_AND_FAILS)
def test_a_claim_passes_where_it_holds_and_fails_where_it_does_not(id: str) -> None:
    holds, fails = HOLDS_AND_FAILS[id]
    assert (verdict(id, holds), verdict(id, fails)) == (Verdict.PASS, Verdict.FAIL)


def test_every_claim_about_learning_is_judged_by_pipelines() -> None:
    learning = {claim.id for paper in papers() for claim in paper.claims if claim.statement.kind is ClaimKind.LEARNING}
    assert learning == {*CLAIMS, "B5"}
    assert {*HOLDS_AND_FAILS, "J1", "J2", "J3", "J4", "L3a", "L7", "B1"} == {*CLAIMS}


def test_l3a_multiplies_the_step_of_a_server_by_the_steps_to_the_target() -> None:
    def step_s(clock: Clock) -> float:
        return float(clock.nodes) if "collective=star" in clock.contender else 1.0

    assert verdict("L3a", slower(), step_s) is Verdict.PASS
    assert verdict("L3a", slower(dpsgd=3000.0), step_s) is Verdict.REGION  # with 32 nodes and more
    assert verdict("L3a", slower(dpsgd=12_000.0), step_s) is Verdict.FAIL


def test_l7_compares_one_worker_with_several() -> None:
    assert verdict("L7", lambda trial: End(20_000 / trial.nodes**0.99)) is Verdict.PASS
    assert verdict("L7", lambda trial: End(20_000 / trial.nodes**0.5)) is Verdict.FAIL


def test_b1_compares_time_and_samples_beside_a_slow_worker() -> None:
    def step_s(clock: Clock) -> float:
        return 4.0 if clock.contender.startswith("sync") else 1.0

    assert verdict("B1", slower(), step_s) is Verdict.PASS
    assert verdict("B1", slower(adpsgd=1500.0), step_s) is Verdict.FAIL


def test_b5_cannot_be_tested_with_batches_that_harm_nothing() -> None:
    b5 = next(claim for paper in papers() for claim in paper.claims if claim.id == "B5")
    assert finding_of(b5, {}, findings_on_tasks(b5, world(slower()))).verdict is Verdict.NOT_TESTABLE


def test_distances_that_fall_keep_a_bound_and_those_of_diverging_runs_say_nothing() -> None:
    assert verdict("T4", apart(-0.4)) is Verdict.PASS

    def diverging(trial: Trial) -> End:
        return End(apart=math.inf) if has(trial, "tau=32") else apart(0.02)(trial)

    assert {verdict(id, diverging) for id in ("T4", "T5")} == {Verdict.INCONCLUSIVE}


@each_row(("limit", "outcome"), [(8, Verdict.PASS), (4, Verdict.FAIL), (128, Verdict.FAIL)])
def test_a2_wants_three_doublings_and_a_limit(limit: int, outcome: Verdict) -> None:
    assert verdict("A2", a2(limit, 0.1)) is outcome


def test_a_forecast_counts_what_an_archive_misses_of_every_claim() -> None:
    """The archive of the repository has some of all trials, which noted more or less."""
    known = Pipelines.read(Path(__file__).parents[3] / "results" / "papers")
    for claim in CLAIMS.values():
        assert forecast(claim.needs, known).runs <= forecast(claim.needs, Pipelines({}, {})).runs
