"""Judge the exact claims of Jin et al. from the logged runs."""

from __future__ import annotations

import numpy as np

from dsgd.record.reader import Run
from studies.papers import CLAIMS
from studies.papers.jin2016.studies import BYTES_PER_S, GRADIENT_S, LAGGING, LAST, MESSAGE
from studies.reproduction.paper import Evidence
from studies.reproduction.verdict import Finding


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


def _steps_of_others(run: Run) -> float:
    return float(np.mean([steps for rank, steps in enumerate(run.final("worker_steps")) if rank != LAGGING]))
