"""Al Asif et al. 2026: HeLoCo, asynchronous DiLoCo whose stale changes are turned towards the momentum."""

from __future__ import annotations

from studies.evidence.claim import Cells, claim_on_tasks, claim_over_conditions
from studies.evidence.contrast import Contrast, loss_at_end, seconds
from studies.evidence.pipeline import Candidate
from studies.evidence.tasks import TARGETS
from studies.papers import CLAIMS, described

P, TAU = 8, 20
PLAIN = f"asyncdiloco tau={TAU}"
COSINES = (0.0, 0.5)  # from which a block is left as it is
SLOWNESS = ",".join(f"{rank}:{rank + 1}.0" for rank in range(1, P))
SLOW = f"cluster.slow_nodes={{{SLOWNESS}}}"
SKEWED = "data.split=dirichlet data.split_alpha=0.1"
CONDITIONS = {"equal workers": "", "1 to 8 times slower": SLOW, "1 to 8 times slower, data differ": f"{SLOW} {SKEWED}"}


def turned(condition: str) -> list[str]:
    """Return the variants of HeLoCo under a condition."""
    return [f"{PLAIN} c_ok={cosine:g} {condition}".strip() for cosine in COSINES]


def ends(task: str) -> Cells:
    """Compare the losses with and without turning, at equal samples."""

    def without_over_with(condition: str) -> list[Contrast]:
        plain, better = loss_at_end(task, P, f"{PLAIN} {condition}".strip()), loss_at_end(task, P, *turned(condition))
        return [Contrast("loss", "test loss, asynchronous DiLoCo over HeLoCo", plain, better)]

    return {name: without_over_with(condition) for name, condition in CONDITIONS.items()}


def beside_slow_workers(task: str) -> list[Contrast]:
    """Compare times to the target beside workers that are up to eight times slower."""
    waiting, better = (
        seconds([Candidate(task, name, P) for name in names], TARGETS[task])
        for names in ([f"diloco tau={TAU} {SLOW}"], turned(SLOW))
    )
    return [Contrast("time", "time to the target, synchronous DiLoCo over HeLoCo", waiting, better)]


PAPER = described(
    "alasif2026", claim_over_conditions(CLAIMS["D12"], ends), claim_on_tasks(CLAIMS["D13"], beside_slow_workers)
)
