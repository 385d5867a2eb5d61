"""CHOCO-SGD at the real scale: whether short codes come to the loss of D-PSGD."""

from __future__ import annotations

from collections.abc import Iterator

from dsgd.report.contest import Contender
from studies.papers.real.tasks import COSINE_ON_BOTH_TASKS, NULL, TASKS, ending, stated, tuned
from studies.reproduction.fair import Null, loss_ratio
from studies.reproduction.logged import Logged
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, named
from studies.reproduction.verdict import NEARNESS, Finding, exactly

P = 8
CODES = {"top 1 %": {"compressor": "topk", "share": 0.01}, "signs": {"compressor": "sign"}}
ORDERS = ("before", "first")  # of D-PSGD: the published one, and that which CHOCO is without a code and with gamma = 1
RATES = "compare.tune={optimizer.lr: [0.025, 0.2], algo.gamma: [0.05, 0.4]}"
DPSGD = [{"algo": "dpsgd", "algo.gradient": order} for order in ORDERS]
CHOCO = [{"algo": "choco"} | {f"algo.{key}": value for key, value in code.items()} for code in CODES.values()]
CHECKS = len(CODES) * len(ORDERS)


def b10(evidence: Evidence) -> Finding:
    """Compare the loss at the end with that of D-PSGD in both of its orders, for the code that is nearest to it."""
    claim, logged, codes = stated("B10"), evidence["codes"], []
    plain = {order: logged.contender(algo="dpsgd", algo__gradient=order) for order in ORDERS}
    for name in CODES:
        code, checks = of_code(logged, name), []
        for order in ORDERS:
            null = Null(plain[order], evidence["null_codes"].contender(algo__gradient=order))
            what = f"{name}: test loss over test loss of D-PSGD with algo.gradient={order}"
            checks.append(claim.check("loss", what, loss_ratio(code, plain[order], CHECKS, null)))
        fewer = exactly(bytes_sent(plain[ORDERS[0]]) / bytes_sent(code))
        checks.append(claim.check("fewer", f"{name}: times fewer bytes than D-PSGD", fewer))
        codes.append(claim.judged(checks))
    return max(codes, key=_nearness)


def of_code(logged: Logged, name: str) -> Contender:
    """Return CHOCO-SGD with this code."""
    return logged.contender(algo="choco", **{f"algo__{key}": value for key, value in CODES[name].items()})


def bytes_sent(contender: Contender) -> float:
    """Return the bytes that all workers sent."""
    return contender.runs[0].final("bytes_sent_total")


def _nearness(code: Finding) -> tuple[int, float]:
    """Return how near a code is to passing: its verdict, then its larger ratio of losses."""
    *losses, _ = code.checks
    return NEARNESS.index(code.verdict), -max(check.value.high for check in losses)


def _studies() -> Iterator[Study]:
    for task in TASKS:
        setting = (f"nodes={P}", "topology=ring", "eval.every_steps=640")
        yield tuned("codes", task, named([*DPSGD, *CHOCO]), RATES, "compare.tune_values=40", *setting)
        yield ending("null_codes", task, named(DPSGD), *setting, NULL)


PAPER = Paper(
    key="koloskova2019_real",
    order=17,
    title="CHOCO-SGD, at the real scale",
    reference="Koloskova, Stich, Jaggi 2019, arXiv 1902.00340; Koloskova, Lin, Stich, Jaggi 2020, arXiv 1907.09356",
    summary=(
        "Whether gossip of short codes comes to the loss of D-PSGD, by "
        "[the protocol](../../docs/explanation/papers.md)."
    ),
    assumptions=(
        Assumption("order", "step, send, mix", "published"),
        Assumption("codes", "of the whole vector, not of each layer", "ours"),
        Assumption("gamma", "tuned with the rate, for each code; D-PSGD has none, so fewer runs", "ours"),
        Assumption("local momentum", "0.9, not mixed; Nesterov", "ours"),
        Assumption("workers", f"{P}, in a ring", "ours"),
        *COSINE_ON_BOTH_TASKS,
    ),
    studies=tuple(_studies()),
    claims=(Claim(stated("B10"), ("codes", "null_codes"), b10, TASKS),),
)
