"""Verdicts on Jin et al. 2016, on pipelines whose T* is known."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dsgd.report.style import drawing
from studies.evidence.pipeline import Missing, Pipelines
from studies.evidence.trial import Clock, Trial
from studies.papers import jin2016
from studies.papers.jin2016 import charts
from studies.papers.jin2016.contenders import FEW, MANY
from studies.reproduction.pages import finding_of, findings_on_tasks
from studies.reproduction.verdict import Finding, Verdict
from tests.support.power_laws import End, world

PASS, FAIL = Verdict.PASS, Verdict.FAIL
NODES = (*FEW, *MANY)


def pipelines(exact: Mapping[int, float], local: Mapping[int, float]) -> Pipelines:
    """Return pipelines in which all-reduce and gossip need so many steps, by the number of nodes, and others many. A
    step takes a second; of all-reduce one more for a standard deviation of the gradient time."""

    def end(trial: Trial) -> End:
        algo, *options = trial.contender.split()
        needed = {"sync": exact, "gossip": local}.get(algo, {}).get(trial.nodes, 20_000)
        return End(needed * (2 if "tau=10" in options else 1))

    def step_s(clock: Clock) -> float:
        return 1.0 + (clock.jitter if clock.contender == "sync" else 0.0)

    return world(end, step_s)


def judge(id: str, archive: Pipelines) -> Finding:
    claim = next(claim for claim in jin2016.PAPER.claims if claim.id == id)
    return finding_of(claim, {}, findings_on_tasks(claim, archive))


def test_j1_passes_where_jitter_costs_all_reduce_more_than_gossip_needs() -> None:
    """Gossip needs 1.4 times the steps, and all-reduce waits; from a jitter of 100 % on gossip is first by 1.43."""
    few = dict.fromkeys(FEW, 1000.0)
    finding = judge("J1", pipelines(few, dict.fromkeys(FEW, 1400.0)))
    assert finding.verdict is Verdict.REGION
    assert {name for name, cell in finding.cells.items() if cell is PASS} == {
        "jitter 100 %, overlap",
        "jitter 100 %, no overlap",
    }
    assert judge("J1", pipelines(few, dict.fromkeys(FEW, 800.0))).verdict is PASS
    assert judge("J1", pipelines(few, dict.fromkeys(FEW, 5000.0))).verdict is FAIL


def test_j1_wants_two_of_three_numbers_of_nodes() -> None:
    few = dict.fromkeys(FEW, 1000.0)
    assert judge("J1", pipelines(few, {4: 800, 8: 800, 16: 5000})).verdict is PASS
    assert judge("J1", pipelines(few, {4: 800, 8: 5000, 16: 5000})).verdict is FAIL


def test_j1_says_what_jitter_in_training_costs_and_what_a_resnet_comes_to() -> None:
    def end(trial: Trial) -> End:
        slower = {"sync": 1000.0, "easgd": 3000.0, "gossip": 2000.0}[trial.contender.split()[0]]
        return End(slower, worse=1.2 if "cluster.jitter=1" in trial.contender and "tau=1 " in trial.contender else 1.0)

    reason = judge("J1", world(end)).reason
    full = reason.partition("so many times as high: ")[2]
    losses = [float(number) for number in re.findall(r"(\d+\.\d+|\d+) \[", full)[:3]]
    assert [round(loss, 1) for loss in losses] == [1.0, 1.2, 1.0]  # EASGD, gossip with tau = 1 and with 10
    rivals = re.findall(r"(easgd tau=10|gossip mode=push tau=1) (0\.\d+) \[", reason.partition("Spot check")[2])
    assert [(name, round(float(ratio), 1)) for name, ratio in rivals] == [
        ("easgd tau=10", 0.3),
        ("gossip mode=push tau=1", 0.5),
    ]


def test_j2_compares_all_reduce_with_every_other_on_100_nodes() -> None:
    assert judge("J2", pipelines({100: 400}, {100: 3000})).verdict is PASS
    assert judge("J2", pipelines({100: 10_000}, {100: 3000})).verdict is FAIL


def test_j3_wants_all_reduce_behind_on_16_nodes_and_first_on_64() -> None:
    exact = {nodes: 16_000 / nodes for nodes in NODES}
    crossing = judge("J3", pipelines(exact, dict.fromkeys(NODES, 600.0)))
    assert crossing.verdict is PASS
    assert "The ratio is 1 on 29 nodes" in crossing.reason  # 16,000 / 29.3 steps of 1.1 s
    assert "T* on 100 nodes by a power law through 16, 32 and 64: sync 1" in crossing.reason
    assert judge("J3", pipelines(exact, dict.fromkeys(NODES, 3000.0))).verdict is FAIL
    assert "no crossover is seen" in judge("J3", pipelines(exact, dict.fromkeys(NODES, 9000.0))).reason


def test_j4_compares_samples_of_two_periods() -> None:
    assert judge("J4", pipelines({}, {8: 1000})).verdict is FAIL


def test_without_runs_nothing_is_judged_and_the_first_replicates_come_first() -> None:
    empty = Pipelines({}, {})
    assert judge("J1", empty).verdict is Verdict.NOT_RUN
    assert "Runs are missing" in judge("J1", empty).reason
    wanted = []
    for need in jin2016.PAPER.needs_of():
        try:
            need(empty, 3)
        except Missing as line:
            wanted += line.wanted
    assert {trial.nodes for trial in wanted} == {*NODES}
    assert {trial.task for trial in wanted if isinstance(trial, Trial)} == {"shapes", "fashion", "resnet8"}
    assert {trial.replicate for trial in wanted} == {0, 1, 2}


def test_figures_show_both_tasks() -> None:
    archive = pipelines({nodes: 16_000 / nodes for nodes in NODES}, dict.fromkeys(NODES, 3000.0))
    for draw in (charts.steps_over_nodes, charts.ratio_over_levels, charts.profile):
        with drawing("double"):
            figure = draw(archive)
        assert figure is not None
        if draw is not charts.profile:
            titles = [axes.get_title(loc="left").split()[1].strip(",") for axes in figure.axes]
            # over nodes there is a second row, of larger batches
            assert titles == ["shapes", "fashion"] * (2 if draw is charts.steps_over_nodes else 1)
        assert all(len(axes.lines) >= 3 for axes in figure.axes)
