"""Who races in the claims of Jin et al.: the variants of each algorithm, and all-reduce against one of them."""

from __future__ import annotations

from dataclasses import replace

from studies.evidence.contrast import Contrast, seconds
from studies.evidence.pipeline import Candidate
from studies.evidence.tasks import BATCHES, FIRST, TARGETS

FEW, MANY = (4, 8, 16), (32, 64, 100)
LAST = 100  # nodes where the ends are compared
CELLS = [(jitter, overlap) for jitter in (0.0, 0.1, 0.3, 1.0) for overlap in (True, False)]  # of the maps
ALL_REDUCE = "sync"
VARIANTS = {
    "easgd": ("easgd tau=1", "easgd tau=10", "easgd tau=10 alpha=0.5"),
    "gossip": tuple(f"gossip mode={mode} tau={tau}" for mode in ("pull", "push") for tau in (1, 10)),
}
ON_MANY = {"easgd": ("easgd tau=10 alpha=0.5",), "gossip": ("gossip mode=pull tau=1", "gossip mode=pull tau=10")}
# numbers of steps that are tried first, a factor of four below T* where that is dear
FIRST_EXACT = {4: 640, 8: 160, 16: 320, 32: 160, 64: 160, 100: 160}
FIRST_LOCAL = {4: 640, 8: 160, 16: 640}


def cells(task: str, nodes: int, algo: str) -> list[Candidate]:
    """Return the variants of an algorithm: on more than 16 nodes not those that were later than another on 16."""
    if algo in (ALL_REDUCE, "dpsgd"):
        return [Candidate(task, algo, nodes, FIRST_EXACT[nodes])]
    if nodes in FEW:
        return [Candidate(task, name, nodes, FIRST_LOCAL[nodes]) for name in VARIANTS[algo]]
    return [Candidate(task, name, nodes, FIRST[task] if "tau=10" in name else 640) for name in ON_MANY[algo]]


def cell_of(task: str, nodes: int, name: str, larger: int = 1) -> Candidate:
    """Return the candidate of a contender. larger: so many times the batch."""
    (cell,) = [cell for cell in cells(task, nodes, name.split()[0]) if cell.contender == name]
    return cell if larger == 1 else replace(cell, contender=f"{name} batch_size={larger * BATCHES[task]}")


def race(criterion: str, task: str, nodes: int, algo: str, overlap: bool, jitter: float) -> Contrast:
    """Compare the seconds to the target of all-reduce, and of an algorithm by its variant that tuning prefers."""
    exact, other = (seconds(cells(task, nodes, name), TARGETS[task], overlap, jitter) for name in (ALL_REDUCE, algo))
    return Contrast(criterion, f"{nodes} nodes: time of all-reduce over that of {algo}", exact, other)
