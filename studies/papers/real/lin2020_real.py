"""Local SGD at the real scale: what long periods cost, and what all-reduce before them gives back."""

from __future__ import annotations

from collections.abc import Iterator

from dsgd.report.contest import Contender
from studies.papers.real.tasks import COSINE_ON_BOTH_TASKS, MOST_TESTED, NULL, TASKS, ending, stated
from studies.reproduction.fair import Null, accuracy_gain, loss_ratio
from studies.reproduction.logged import Logged
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, named
from studies.reproduction.verdict import Finding, Verdict

SWITCH = 2560  # steps: half of all
LONGEST, POST = 64, 16  # periods: of local SGD, and after the switch
P = 16
LOCAL = {"algo": "localsgd"}
WAYS = ({"algo": "sync"}, {**LOCAL, "algo.tau": LONGEST}, {**LOCAL, "algo.tau": POST, "algo.switch": SWITCH})
CHECKS = 2


def b5(evidence: Evidence) -> Finding:
    """Compare the loss at the end with a long period, and the accuracy of post-local SGD, with all-reduce's; without a
    verdict, as the batch is one that harms nothing."""
    claim, logged = stated("B5"), evidence["periods"]
    exact = logged.contender(algo="sync")
    null = Null(exact, evidence["null_periods"].contender(algo="sync"))
    long, post = of_period(logged, LONGEST), of_period(logged, POST, SWITCH)
    what = f"tau = {LONGEST}: test loss of local SGD over test loss of all-reduce"
    loss = claim.check("loss", what, loss_ratio(long, exact, CHECKS, null))
    gain = accuracy_gain(post, exact, CHECKS, null)
    reason = (
        "The paper speaks of batches so large that all-reduce generalises worse with them. Here the batch of all "
        "workers is 128 images on shapes, and 256 on fashion; by claim A2 even 256 cost no accuracy on shapes. So "
        "there is none to be given back, and what was measured is information."
    )
    accuracy = claim.check("accuracy", "post-local SGD: test accuracy minus all-reduce's", gain)
    return Finding(Verdict.NOT_TESTABLE, (loss, accuracy), reason)


def of_period(logged: Logged, tau: int, switch: int = 0) -> Contender:
    """Return the contender with a period, after so many steps of all-reduce."""
    return logged.contender(algo="localsgd", algo__tau=tau, algo__switch=switch)


def _studies() -> Iterator[Study]:
    for task in TASKS:
        setting = (f"nodes={P}", "eval.every_steps=640", *MOST_TESTED[task])
        yield ending("periods", task, named(WAYS), *setting)
        yield ending("null_periods", task, named(WAYS[:1]), *setting, NULL)


PAPER = Paper(
    key="lin2020_real",
    order=12,
    title="Don't use large mini-batches, use local SGD: at the real scale",
    reference="Lin, Stich, Patel, Jaggi 2020, arXiv 1808.07217; Ortiz et al. 2021, arXiv 2110.08133",
    summary=(
        "What a period of 64 costs at equal samples, and whether post-local SGD generalises better than all-reduce, by "
        "[the protocol](../../docs/explanation/papers.md)."
    ),
    assumptions=(
        Assumption("workers", f"{P}", "published"),
        Assumption("switch of post-local SGD", f"after {SWITCH:,} of 5,120 steps; the paper's is at a decay", "ours"),
        Assumption("its period", f"{POST}", "published"),
        Assumption("momentum", "0.9, local and kept at averages; Nesterov", "published"),
        *COSINE_ON_BOTH_TASKS,
    ),
    studies=tuple(_studies()),
    claims=(Claim(stated("B5"), ("periods", "null_periods"), b5, TASKS),),
)
