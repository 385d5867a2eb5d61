"""Judge the claims of Lian et al. about learning: D-PSGD per sample, and its time to a target against its rivals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from studies.evidence.claim import Cells
from studies.evidence.contrast import Contrast, Measure, loss_at_end, need_of, seconds
from studies.evidence.levels import LEVELS, drawn_over_levels, over_levels
from studies.evidence.pipeline import Candidate, Pipelines
from studies.evidence.tasks import FIRST, IMAGES, TARGETS
from studies.papers.jin2016.contenders import FEW, MANY, cells
from studies.papers.zhang2015.learning import PLAIN
from studies.reproduction.chart_panels import ChartLine

ALL_REDUCE, DPSGD = "sync", "dpsgd"
P = 8
SLOW, FAST = "cluster=lian2017_10mbit", "cluster=zhang2015"  # 10 Mbit/s, 10 Gbit/s
NETWORKS = {"10 Gbit/s": FAST, "10 Mbit/s": SLOW}  # of L6
SERVED = (16, *MANY)  # workers of L3a
WORKERS = (2, 4, 8, 16)  # of L7
EAMSGD = f"momentum=0.9 {PLAIN}"
TAUS = {1: ("easgd tau=1",), 10: ("easgd tau=10", "easgd tau=10 alpha=0.5")}


def per_sample(task: str) -> Cells:
    """Compare the losses after a number of steps."""

    def after(part: int) -> list[Contrast]:
        other, exact = (loss_at_end(task, P, name, part=part) for name in (DPSGD, ALL_REDUCE))
        return [Contrast("loss", "test loss, D-PSGD over all-reduce", other, exact)]

    return {"a quarter of the steps": after(4), "all steps": after(1)}


def behind_a_server(task: str, numbers: Sequence[int] = SERVED) -> Cells:
    """Compare the times to the target of a synchronous server and of D-PSGD, at 10 Mbit/s."""

    def on(nodes: int) -> list[Contrast]:
        server, peers = (seconds([cell], TARGETS[task]) for cell in _served(task, nodes))
        return [Contrast("time", "10 Mbit/s: time to the target, server over D-PSGD", server, peers)]

    return {f"{nodes} nodes": on(nodes) for nodes in numbers}


def over_loss(pipelines: Pipelines) -> Figure | None:
    """Draw the time of a server over that of D-PSGD at 10 Mbit/s, from early to late losses, a panel for each task."""

    def lines(task: str) -> list[ChartLine]:
        pairs = ((nodes, *_served(task, nodes)) for nodes in FEW)
        return [
            ChartLine(f"p = {nodes}", DPSGD, over_levels(server, peers, pipelines, 0.0), variant)
            for variant, (nodes, server, peers) in enumerate(pairs)
        ]

    return drawn_over_levels("10 Mbit/s", "times as fast as a server", lines)


def _served(task: str, nodes: int) -> tuple[Candidate, Candidate]:
    """Return all-reduce by a server, and D-PSGD, at 10 Mbit/s."""
    (server,) = _on(f"{SLOW} cluster.collective=star", cells(task, nodes, ALL_REDUCE))
    (peers,) = _on(SLOW, cells(task, nodes, DPSGD))
    return server, peers


def elastic(task: str) -> Cells:
    """Compare the times to the target of EAMSGD, with each period, and of D-PSGD, on each network."""

    def over(network: str, tau: int) -> Contrast:
        variants = [Candidate(task, f"{name} {EAMSGD} {network} cluster.jitter=0", P) for name in TAUS[tau]]
        momentum = seconds(variants, TARGETS[task])
        peers = seconds(_on(network, cells(task, P, DPSGD)), TARGETS[task])
        return Contrast("sooner", f"tau = {tau}: time to the target, EAMSGD over D-PSGD", momentum, peers)

    return {name: [over(network, tau) for tau in TAUS] for name, network in NETWORKS.items()}


def speed_up(task: str) -> Cells:
    """Compare the times to the target of one worker and of several, at 10 Gbit/s."""

    def time(nodes: int) -> Measure:
        variants = cells(task, nodes, DPSGD) if nodes in FEW else [Candidate(task, DPSGD, nodes, FIRST[task])]
        return seconds(_on(FAST, variants), TARGETS[task])

    what, alone = "time to the target, one worker over p", time(1)
    return {f"{nodes} workers": [Contrast(f"p{nodes}", what, alone, time(nodes))] for nodes in WORKERS}


def _on(network: str, variants: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates on another network."""
    return [replace(cell, network=network) for cell in variants]


LEVELS_SHOWN = tuple(
    need_of(seconds([cell], level))
    for task in IMAGES
    for nodes in FEW
    for cell in _served(task, nodes)
    for level in LEVELS[task]
)
