"""Lian et al. 2018 at the real scale: AD-PSGD beside a slow worker, over the bandwidth."""

from __future__ import annotations

from collections.abc import Iterator

from studies.papers.real.tasks import NULL, ON_BOTH_TASKS, TASKS, race, stated
from studies.reproduction import paired
from studies.reproduction.fair import Null, sample_ratio, time_ratio
from studies.reproduction.pages import shown
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, listed, named
from studies.reproduction.verdict import Finding, over_region

P = 8
FACTORS = (4, 10)  # by which one worker is slower
BANDWIDTHS = (1e9, 1e10)  # bit/s: an average takes four gradients, and less than one
SYNC, ADPSGD = {"algo": "sync"}, {"algo": "adpsgd"}
CHECKS = 1 + len(FACTORS)
OTHERWISE = (
    "On generated images, by three seeds that are not logged, at 10 Gbit/s: where no worker is slow AD-PSGD needs 1.7 "
    "times the samples of all-reduce, so the slow worker is not the cause. Without momentum in both, beside a worker 4 "
    "times slower, it needs 2.1 times the samples."
)


def b1(evidence: Evidence) -> Finding:
    """Compare time and samples to the target beside one slow worker, over the bandwidth."""
    claim, cells, slowest = stated("B1"), {}, []
    for bandwidth in BANDWIDTHS:
        checks, network = [], f"{bandwidth / 1e9:g} Gbit/s"
        for factor in FACTORS:
            at = {"cluster__bandwidth": bandwidth}
            exact, late = (evidence[f"slow_{factor}"].contender(algo=algo, **at) for algo in ("sync", "adpsgd"))
            null = Null(exact, evidence[f"null_slow_{factor}"].contender(algo="sync", **at))
            what = f"one worker {factor} times slower: {{}} to the target, {{}}"
            if factor == FACTORS[0]:
                value = time_ratio(exact, late, CHECKS, null)
                checks.append(claim.check("time", what.format("time", "all-reduce over AD-PSGD"), value))
            value = sample_ratio(late, exact, CHECKS, null)
            checks.append(claim.check("samples", what.format("samples", "AD-PSGD over all-reduce"), value))
            if factor == FACTORS[-1]:
                slowest.append(f"{shown(paired.ratio(exact, late, rule=None))} at {network}")
        cells[network] = claim.judged(checks)
    reason = f"Time of all-reduce over AD-PSGD's beside a worker {FACTORS[-1]} times slower: {', '.join(slowest)}."
    return over_region(cells, f"{reason} {OTHERWISE}")


def _studies() -> Iterator[Study]:
    for task in TASKS:
        for factor in FACTORS:
            network = (f"cluster.bandwidth={listed(BANDWIDTHS)}", f"cluster.slow_nodes={{{P - 1}: {factor}.0}}")
            yield race(f"slow_{factor}", task, named([SYNC, ADPSGD]), f"nodes={P}", *network)
            yield race(f"null_slow_{factor}", task, named([SYNC]), f"nodes={P}", *network, NULL)


PAPER = Paper(
    key="lian2018_real",
    order=10,
    title="Asynchronous decentralized parallel stochastic gradient descent, at the real scale",
    reference="Lian, Zhang, Zhang, Liu 2018, arXiv 1710.06952",
    summary=(
        "How much sooner AD-PSGD reaches a target than all-reduce where one worker is slow, and how many more samples "
        "that takes, by [the protocol](../../docs/explanation/papers.md). The time of an epoch needs no training: it "
        "is on [the page of the small scale](lian2018.md)."
    ),
    assumptions=(
        Assumption("pairs", "one half of the workers begins, any of the other half answers", "published"),
        Assumption("slow worker", "one of 8, 4 and 10 times slower", "ours"),
        Assumption("network", "1 and 10 Gbit/s, messages of ResNet-18, gradients of 0.2 s; overlap", "ours"),
        Assumption("momentum", "Nesterov 0.9, local", "ours"),
        Assumption("schedule", "cosine, over a number of steps that is tuned", "ours"),
        *ON_BOTH_TASKS,
    ),
    studies=tuple(_studies()),
    claims=(Claim(stated("B1"), tuple(f"{null}slow_{each}" for each in FACTORS for null in ("", "null_")), b1, TASKS),),
)
