"""Judge the exact claims of Jin et al. from the logged runs, and draw the throughput of a server."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from dsgd.record.reader import Run
from studies.papers import CLAIMS
from studies.reproduction.chart_panels import FORMULA, ChartPanel, chart, line_of
from studies.reproduction.logged import throughput
from studies.reproduction.paper import Evidence
from studies.reproduction.verdict import Finding

GRADIENT_S, MESSAGE, BYTES_PER_S = 0.2, 46_758_048, 1e10 / 8  # of the studies of a server
LAGGING = 3  # the slow worker's rank
LAST = 100  # nodes


def j5(evidence: Evidence) -> Finding:
    """Compare the steps of the other workers beside one that is four times slower, or stands still."""
    claim = CLAIMS["J5"]
    checks = []
    for name, what in (("slow", "one worker 4 times slower"), ("paused", "one worker paused")):
        for algo in ("gossip", "sync"):
            lagging, equal = (_steps_of_others(evidence[study].run(algo=algo)) for study in (name, "equal"))
            checks.append(claim.check(algo, f"`{algo}`, {what}: steps that the others lose", 1 - lagging / equal))
    return claim.judged(checks)


def j6(evidence: Evidence) -> Finding:
    """Compare the throughput of a server that has too many workers with that of one worker."""
    claim, easgd = CLAIMS["J6"], evidence["served_easgd"]
    cases = [
        ("EASGD, tau = 1", 1, easgd.where(algo__tau=1)),
        ("EASGD, tau = 10", 10, easgd.where(algo__tau=10)),
        ("Downpour", 1, evidence["served_downpour"].runs),
    ]
    checks = []
    for what, tau, runs in cases:
        rates = {run.setting("nodes"): throughput(run) for run in runs}
        expected = tau * GRADIENT_S * BYTES_PER_S / MESSAGE + 2
        served, flat = rates[LAST] / rates[1], rates[LAST] / rates[64] - 1
        checks.append(claim.check("knee", f"{what}: workers that a server can serve", served, expected))
        checks.append(claim.check("flat", f"{what}: growth of the throughput from 64 to 100 nodes", flat))
    return claim.judged(checks)


def server_throughput(evidence: Evidence) -> Figure:
    """Draw the samples per second behind one server against the number of nodes."""
    easgd, downpour = evidence["served_easgd"], evidence["served_downpour"].runs
    served = [(f"easgd, tau = {tau}", easgd.where(algo__tau=tau), i) for i, tau in enumerate((1, 10))]
    lines = [
        line_of(label, label.partition(",")[0], [(float(run.setting("nodes")), throughput(run)) for run in runs], i)
        for label, runs, i in (*served, ("downpour", downpour, 0))
    ]
    batch = downpour[0].setting("batch_size")
    bound = [(p, batch * BYTES_PER_S / MESSAGE) for p in (1.0, 100.0)]
    lines.append(line_of("port of the server, tau = 1", FORMULA, bound))
    lines.append(line_of("no communication", FORMULA, [(p, p * batch / GRADIENT_S) for p in (1.0, 100.0)]))
    return chart(ChartPanel("10 Gbit/s, 46.8 MB", "nodes", "samples per virtual second", lines, log_x=True, log_y=True))


def _steps_of_others(run: Run) -> float:
    return float(np.mean([steps for rank, steps in enumerate(run.final("worker_steps")) if rank != LAGGING]))
