"""Judge the claims of Jin et al. from the logged runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from dsgd.record.reader import Run
from dsgd.report.contest import Contender, final_loss
from dsgd.report.fields import field_value
from dsgd.report.interval import Estimate, estimate
from dsgd.report.ratio import paired_ratio
from studies.papers import CLAIMS
from studies.papers.jin2016.studies import BYTES_PER_S, FEW, GRADIENT_S, LAGGING, LAST, MANY, MESSAGE
from studies.reproduction.paired import ratio, sample_ratio, scores
from studies.reproduction.paper import Evidence
from studies.reproduction.verdict import Check, Finding

ASYNCHRONOUS = ("easgd", "gossip")


def j1(evidence: Evidence) -> Finding:
    """Compare times to the target on few nodes, with jitter of 10 %, for the better one of EASGD and gossip."""
    better = max(ASYNCHRONOUS, key=lambda algo: _passes(evidence, algo, overlap=True))
    checks = [_sooner(evidence, "few_uneven", nodes, better, overlap=True) for nodes in FEW]
    exposed = max(ASYNCHRONOUS, key=lambda algo: _passes(evidence, algo, overlap=False))
    why = [_sooner(evidence, "few_uneven", nodes, exposed, overlap=False) for nodes in FEW]
    reason = (
        "The paper does not say whether its all-reduce hides behind the backward pass; here it does, as in today's "
        "libraries. The map shows both, with jitter and without."
    )
    return CLAIMS["J1"].judged(checks, reason, explained_by=why)


def j2(evidence: Evidence) -> Finding:
    """Compare final losses and times to the target on 100 nodes."""
    claim = CLAIMS["J2"]
    checks = []
    for study, epochs in (("many_uneven", 20), ("hundred", 40)):
        exact = evidence[study].contender(algo="sync", nodes=LAST, algo__overlap=True)
        for algo in ASYNCHRONOUS:
            candidates = [
                contender
                for contender in evidence[study].contenders
                if contender.algo == algo and contender.nodes == LAST
            ]
            best = min(candidates, key=_final)
            ratio = paired_ratio([final_loss(run) for run in exact.runs], [final_loss(run) for run in best.runs])
            what = f"{LAST} nodes, {epochs} epochs: final test loss, sync over {best.algo}"
            checks.append(claim.check("loss", what, ratio))
    exact = evidence["hundred"].contender(algo="sync", algo__overlap=True)
    other = best_of(evidence, "hundred", LAST, *ASYNCHRONOUS)
    what = f"{LAST} nodes, 40 epochs: time to the target, sync over the sooner of the others"
    checks.append(claim.check("time", what, paired_ratio(scores(exact), scores(other))))
    steps = evidence["many_uneven"].contender(algo="sync", nodes=LAST, algo__overlap=True).runs[0].final("steps")
    reason = f"Within 20 epochs, {steps} steps of each worker, nobody reaches the target on {LAST} nodes."
    return claim.judged(checks, reason)


def j3(evidence: Evidence) -> Finding:
    """Find the number of nodes from which all-reduce reaches the target first."""
    ratios = [(nodes, advantage(evidence, study_of(nodes), nodes, overlap=True).median) for nodes in (*FEW, *MANY)]
    crossing = _crossing(ratios)
    text = ", ".join(f"{ratio:.2f} at {nodes}" for nodes, ratio in ratios)
    exposed = [(nodes, advantage(evidence, study_of(nodes), nodes, overlap=False).median) for nodes in (*FEW, *MANY)]
    other = ", ".join(f"{ratio:.2f} at {nodes}" for nodes, ratio in exposed)
    steps = ", ".join(f"{_step_gain(evidence, nodes):.2f} at {nodes}" for nodes in (*FEW, *MANY))
    reason = (
        f"Time to the target, sync over the sooner of the others: {text} nodes; without overlap {other}; 0 where they "
        f"never reach it, nan where sync does not, either. Time of a step, sync over gossip with tau = 10: {steps}; so "
        "much is to be gained, and the rest is what gossip loses in convergence."
    )
    what = "nodes from which sync is first, jitter 10 %, overlap"
    return CLAIMS["J3"].judged([CLAIMS["J3"].check("crossing", what, crossing)], reason)


def j4(evidence: Evidence) -> Finding:
    """Compare bytes and samples to the target of tau = 1 and 10, on eight nodes."""
    claim = CLAIMS["J4"]
    checks: list[Check] = []
    for algo in ASYNCHRONOUS:
        often, seldom = (evidence["period"].run(algo=algo, algo__tau=tau).final("bytes_sent_total") for tau in (1, 10))
        checks.append(claim.check("bytes", f"`{algo}`: bytes, tau = 1 over tau = 10", often / seldom))
        checks.append(_delayed(evidence, "few_even", algo))
    reason = "Within 10 epochs the workers have little time to come back together: the second measurement is of 40."
    return claim.judged(checks, reason, explained_by=[_delayed(evidence, "longer", algo) for algo in ASYNCHRONOUS])


def _delayed(evidence: Evidence, study: str, algo: str) -> Check:
    """Check how many more samples tau = 10 takes to the target."""
    often, seldom = (evidence[study].contender(algo=algo, nodes=8, algo__tau=tau) for tau in (1, 10))
    epochs = "40 epochs" if study == "longer" else "10 epochs"
    what = f"`{algo}`, {epochs}: samples to the target, tau = 10 over tau = 1"
    return CLAIMS["J4"].check("samples", what, sample_ratio(seldom, often))


def j5(evidence: Evidence) -> Finding:
    """Compare the steps of the other workers beside one that is four times slower, or stands still."""
    claim = CLAIMS["J5"]
    checks = []
    for name, what in (("slow", "one worker 4 times slower"), ("paused", "one worker paused")):
        for algo in ("gossip", "sync"):
            lost = 1 - _steps_of_others(evidence[name].run(algo=algo)) / _steps_of_others(
                evidence["equal"].run(algo=algo)
            )
            text = f"`{algo}`, {what}: steps that the others lose"
            checks.append(claim.check(algo, text, lost))
    return claim.judged(checks, "In the same time, on eight nodes. EASGD's others lose none, either.")


def j6(evidence: Evidence) -> Finding:
    """Compare the throughput of a server that has too many workers with that of one worker."""
    claim = CLAIMS["J6"]
    checks = []
    cases = [
        ("served_easgd", "EASGD, tau = 1", 1),
        ("served_easgd", "EASGD, tau = 10", 10),
        ("served_downpour", "Downpour", 1),
    ]
    for name, what, tau in cases:
        settings = {"algo__tau": tau} if name == "served_easgd" else {}
        rates = {
            run.setting("nodes"): run.final("samples") / run.final("time_s") for run in evidence[name].where(**settings)
        }
        expected = tau * GRADIENT_S * BYTES_PER_S / MESSAGE + 2
        served = rates[LAST] / rates[1]
        checks.append(claim.check("knee", f"{what}: workers that a server can serve", served, expected))
        flat = rates[LAST] / rates[64] - 1
        checks.append(claim.check("flat", f"{what}: growth of the throughput from 64 to 100 nodes", flat))
    return claim.judged(checks, "Workers that a server can serve: the throughput of 100 nodes over that of one.")


def study_of(nodes: int) -> str:
    """Return the study with jitter that has so many nodes."""
    return "few_uneven" if nodes in FEW else "many_uneven"


def best_of(evidence: Evidence, study: str, nodes: int, *algos: str) -> Contender:
    """Return the contender of these algorithms, over their periods, with the shortest median time to the target, then
    the lowest final loss."""
    candidates = [
        contender for contender in evidence[study].contenders if contender.algo in algos and contender.nodes == nodes
    ]
    return min(candidates, key=lambda contender: (estimate(scores(contender)).median, _final(contender)))


def advantage(evidence: Evidence, study: str, nodes: int, overlap: bool, *algos: str) -> Estimate:
    """Return the time to the target of all-reduce over that of the sooner of these algorithms; by default of both."""
    exact = evidence[study].contender(algo="sync", nodes=nodes, algo__overlap=overlap)
    return ratio(exact, best_of(evidence, study, nodes, *(algos or ASYNCHRONOUS)))


def _step_gain(evidence: Evidence, nodes: int) -> float:
    """Return the time of a step of all-reduce, which overlaps, over that of gossip with tau = 10."""
    settings = ({"algo": "sync", "algo__overlap": True}, {"algo": "gossip", "algo__tau": 10})
    both = [evidence[study_of(nodes)].contender(nodes=nodes, **of_one).runs[0] for of_one in settings]
    sync, gossip = (field_value(run, "step_s") for run in both)
    return sync / gossip


def _final(contender: Contender) -> float:
    return estimate([final_loss(run) for run in contender.runs]).median


def _sooner(evidence: Evidence, study: str, nodes: int, algo: str, overlap: bool) -> Check:
    hidden = "overlapping" if overlap else "without overlap"
    what = f"p = {nodes}: time to the target, sync ({hidden}) over {algo}"
    return CLAIMS["J1"].check("sooner", what, advantage(evidence, study, nodes, overlap, algo))


def _passes(evidence: Evidence, algo: str, overlap: bool) -> tuple[int, float]:
    """Return on how many numbers of nodes an algorithm is sooner by the threshold, and the sum of its ratios."""
    medians = [advantage(evidence, "few_uneven", nodes, overlap, algo).median for nodes in FEW]
    return sum(value >= CLAIMS["J1"].threshold("sooner") for value in medians), sum(
        value for value in medians if math.isfinite(value)
    )


def _crossing(ratios: Sequence[tuple[int, float]]) -> float:
    """Return where the ratio falls below 1 for good, between two numbers of nodes on a logarithmic axis; NaN if it does
    not."""
    for (few, above), (many, below) in reversed(list(pairwise(ratios))):
        if above >= 1 > below:
            share = (above - 1) / (above - below) if math.isfinite(above) else 1.0
            return float(few * (many / few) ** share)
    return math.nan


def _steps_of_others(run: Run) -> float:
    return float(np.mean([steps for rank, steps in enumerate(run.final("worker_steps")) if rank != LAGGING]))
