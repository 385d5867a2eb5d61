"""Douillard et al. 2026: Decoupled DiLoCo, whose learners go on when others fail."""

from __future__ import annotations

from dsgd.report.interval import Estimate, estimate
from studies.papers import CLAIMS, described
from studies.reproduction.logged import throughput
from studies.reproduction.paper import Claim, Evidence
from studies.reproduction.verdict import Finding

LEARNERS = 8
LOCKSTEP = 0.58  # goodput of training in lock-step, published
UP = LOCKSTEP ** (1 / LEARNERS)  # share of the time in which one learner is up: all are up in the 8th power of it
FAILS_EVERY_S, GRADIENT_S = 250.0, 1.0
TAU = 24  # steps between two messages of a fragment, conf/algo/decoupled.yaml
METHODS = ("sync", "decoupled")
LAWS = ("exponential", "measured")


def d1(evidence: Evidence) -> Finding:
    """Compare the throughput under failures with that without them, of both methods."""
    claim = CLAIMS["D1"]
    kept = {law: {algo: goodput(evidence, law, algo) for algo in METHODS} for law in LAWS}
    lockstep, decoupled = (kept["exponential"][algo] for algo in METHODS)
    what = "{} failures: throughput of {} over that without failures"
    checks = [
        claim.check("premise", what.format("exponential", "all-reduce"), lockstep),
        claim.check("goodput", what.format("exponential", "decoupled"), decoupled),
        claim.check("formula", what.format("exponential", "decoupled, median"), decoupled.median, UP),
        claim.check("goodput", what.format("measured", "decoupled"), kept["measured"]["decoupled"]),
    ]
    slow, measured = (kept["measured"][algo] for algo in METHODS)
    sent = 1 - TAU / 2 * GRADIENT_S / FAILS_EVERY_S
    numbers = {"up_of_4": LOCKSTEP**0.25, "sent": sent * decoupled.median, "sent_measured": sent * measured.median}
    return claim.judged(checks, up=UP, slow=slow, **numbers)


def goodput(evidence: Evidence, law: str, algo: str) -> Estimate:
    """Return the throughput under failures, of each seed, over that without."""
    whole = throughput(evidence[f"{law}_whole"].run(algo=algo))
    return estimate([throughput(run) / whole for run in evidence[law].where(algo=algo)])


PAPER = described("douillard2026", Claim(CLAIMS["D1"], d1))
