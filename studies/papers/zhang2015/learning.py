"""Judge the claims of Zhang et al. about learning: rates that converge, times to a target, and long periods."""

from __future__ import annotations

from studies.evidence.contrast import Contrast, Measure, accuracy_at_end, largest_rate, seconds
from studies.evidence.paired_t import difference
from studies.evidence.pipeline import Candidate
from studies.evidence.tasks import FIRST, STEPS, TARGETS, contender

PLAIN = "optimizer.momentum=0 optimizer.nesterov=false"
NETWORK = "cluster=zhang2015 cluster.jitter=0"  # on which they train and are timed: the order of messages matters
RANGED, RACED = 8, 4  # workers of E1 and E4, and of E3
LONG = (16, 64)  # periods
LEVELS = tuple(range(-10, 9))  # rates from 0.003 to 1.6, a factor of the root of 2 apart
LEARNED = 1.15  # of the test loss: half of what guessing one of ten classes costs
PERIODS = (1, 4, 16, 64)
ALPHAS = ("", "alpha=0.5")  # moving rate: 0.9 / p, and one that does not fall with p
DELTAS = (0.9, 0.99)


def rates(task: str) -> list[Contrast]:
    """Compare the largest constant rates with which EASGD and Downpour learn, at long periods."""

    def largest(name: str) -> Measure:
        return largest_rate(Candidate(task, f"{name} schedule=constant {PLAIN}", RANGED), STEPS[task], LEVELS, LEARNED)

    what = "tau = {}: largest rate with which EASGD learns over Downpour's; never: Downpour learns with none"
    return [
        Contrast("rate", what.format(tau), largest(f"easgd tau={tau}"), largest(f"downpour n_push={tau} n_fetch={tau}"))
        for tau in LONG
    ]


def race(task: str) -> list[Contrast]:
    """Compare the times to the target of EAMSGD, EASGD, and Downpour with each period."""

    def time(*names: str) -> Measure:
        variants = [Candidate(task, contender(name, PLAIN, NETWORK), RACED, FIRST[task]) for name in names]
        return seconds(variants, TARGETS[task])

    elastic = time(*(contender("easgd tau=10", alpha) for alpha in ALPHAS))
    momentum = time(*(contender(f"easgd tau=10 momentum={delta}", alpha) for delta in DELTAS for alpha in ALPHAS))
    often, seldom = time("downpour"), time("downpour n_push=10 n_fetch=10")
    what = "time to the target, {}"
    return [
        Contrast("ratio", what.format("EASGD over EAMSGD"), elastic, momentum),
        Contrast("ratio", what.format("Downpour with tau = 1 over EASGD"), often, elastic),
        Contrast("ratio", what.format("Downpour with tau = 10 over EASGD"), seldom, elastic),
    ]


def periods(task: str) -> list[Contrast]:
    """Compare the accuracy of the centre at each longer period with that at period 1."""
    short, *longer = (accuracy_at_end(task, RANGED, f"easgd tau={tau} {PLAIN}") for tau in PERIODS)
    what = "accuracy of the centre with tau = {} minus the accuracy with tau = 1"
    return [
        Contrast("accuracy", what.format(tau), each, short, difference)
        for tau, each in zip(PERIODS[1:], longer, strict=True)
    ]
