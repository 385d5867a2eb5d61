"""Lian et al. 2017 at the real scale: D-PSGD per sample, over the rate, against rivals in time, and its speed-up."""

from __future__ import annotations

from collections.abc import Iterator

from dsgd.report.contest import Contender
from studies.papers.lian2017.studies import RIVALS, TAUS
from studies.papers.real.charts import losses_over_rates, on_each_task
from studies.papers.real.tasks import NULL, ON_BOTH_TASKS, SEEDS, TASKS, ending, null_of, race, stated, swept, untuned
from studies.reproduction import paired
from studies.reproduction.fair import Null, loss_ratio, time_ratio
from studies.reproduction.pages import shown
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, listed, named
from studies.reproduction.verdict import Finding, over_region

NODES, SLOW_NODES = 8, 16
RATES = (0.0125, 0.025, 0.05, 0.1, 0.2)
SYNC, DPSGD = {"algo": "sync"}, {"algo": "dpsgd"}
SERVER = {"algo": "sync", "cluster.collective": "star"}
WORKERS = (2, 4, 8, 16)  # of L7
NOT_THE_BATCH = (
    "The growing batch is not what costs: all-reduce, in earlier runs of J1 on shapes that are not logged any more, "
    "needed 133, 135 and 139 thousand samples on 4, 8 and 16 nodes, where one worker needs 136."
)
OTHER_ORDER = (
    "On shapes D-PSGD that steps before it mixes, of B10's runs, has 1.058 [1.003, 1.131] times the loss of "
    "all-reduce, each tuned, which would be open."
)
ELASTIC = {"elastic": ("zhang2015", "10 Gbit/s"), "elastic_slow": ("lian2017_10mbit", "10 Mbit/s")}  # studies of L6


def l1(evidence: Evidence) -> Finding:
    """Compare the losses at the end with the rate that suits each, and with every rate that both have."""
    claim, tuned, logged = stated("L1"), evidence["per_sample"], evidence["rates"]
    null, count = null_of(evidence, "per_sample", NODES), 1 + len(RATES)

    def cell(contender: Contender, reference: Contender) -> Finding:
        ratio = loss_ratio(contender, reference, count, null)
        return claim.judged([claim.check("loss", "test loss, D-PSGD over all-reduce", ratio)])

    cells = {"each tuned": cell(tuned.contender(algo="dpsgd"), tuned.contender(algo="sync"))}
    for rate in RATES:
        both = (untuned(algo, logged.where(algo=algo, optimizer__lr=rate)) for algo in ("dpsgd", "sync"))
        cells[f"rate {rate:g}"] = cell(*both)
    return over_region(cells, OTHER_ORDER)


def l3a(evidence: Evidence) -> Finding:
    """Compare the time to the target with that of a synchronous server, on 16 nodes at 10 Mbit/s."""
    claim, logged = stated("L3a"), evidence["slow"]
    server, decentralised = logged.contender(algo="sync"), logged.contender(algo="dpsgd")
    null = Null(server, evidence["null_slow"].contender(algo="sync"))
    what = f"{SLOW_NODES} nodes, 10 Mbit/s: time to the target, server over D-PSGD"
    more = paired.sample_ratio(decentralised, server, rule=None)
    reason = (
        f"A step is p times as fast as with a server, and D-PSGD needs {shown(more)} times the samples. More than "
        f"{SLOW_NODES} nodes were not tried."
    )
    return claim.judged([claim.check("time", what, time_ratio(server, decentralised, 1, null))], reason)


def l6(evidence: Evidence) -> Finding:
    """Compare the time to the target of EAMSGD, with each period, with that of D-PSGD, on each network."""
    claim, cells = stated("L6"), {}
    for study, (_, network) in ELASTIC.items():
        logged, checks = evidence[study], []
        decentralised = logged.contender(algo="dpsgd")
        null = Null(decentralised, evidence[f"null_{study}"].contender(algo="dpsgd"))
        for tau in TAUS:
            value = time_ratio(logged.contender(algo="easgd", algo__tau=tau), decentralised, len(TAUS), null)
            checks.append(claim.check("sooner", f"tau = {tau}: time to the target, EAMSGD over D-PSGD", value))
        cells[network] = claim.judged(checks)
    return over_region(cells)


def l7(evidence: Evidence) -> Finding:
    """Compare how long one worker and how long several take to the target, at 10 Gbit/s."""
    claim, logged, cells = stated("L7"), evidence["speed_up"], {}
    alone = logged.contender(nodes=1)
    null = Null(logged.contender(nodes=NODES), evidence["null_speed_up"].contender(nodes=NODES))
    for p in WORKERS:
        value = time_ratio(alone, logged.contender(nodes=p), len(WORKERS), null)
        cells[f"p = {p}"] = claim.judged([claim.check(f"p{p}", "time to the target, one worker over p", value)])
    return over_region(cells, NOT_THE_BATCH)


def _studies() -> Iterator[Study]:
    slow = (f"nodes={SLOW_NODES}", "cluster=lian2017_10mbit")
    rates = f"optimizer.lr={listed(RATES)}"
    for task in TASKS:
        alike = (f"nodes={NODES}", "eval.every_steps=640")
        yield ending("per_sample", task, named([SYNC, DPSGD]), *alike)
        yield ending("null_per_sample", task, named([SYNC]), *alike, NULL)
        yield swept("rates", task, *alike, "algo=sync,dpsgd", rates, f"seed={listed(range(SEEDS))}")
        yield race("slow", task, named([SERVER, DPSGD]), *slow)
        yield race("null_slow", task, named([SERVER]), *slow, NULL)
        for study, (cluster, _) in ELASTIC.items():
            network = (f"nodes={NODES}", f"cluster={cluster}")
            yield race(study, task, named(RIVALS), *network)
            yield race(f"null_{study}", task, named([DPSGD]), *network, NULL)
        fast = "cluster=zhang2015"
        yield race("speed_up", task, named([DPSGD]), f"nodes={listed((1, *WORKERS))}", fast)
        yield race("null_speed_up", task, named([DPSGD]), f"nodes={NODES}", fast, NULL)


PAPER = Paper(
    key="lian2017_real",
    order=2,
    title="Can decentralized algorithms outperform centralized ones? At the real scale",
    reference="Lian et al. 2017, arXiv 1705.09056.",
    summary=(
        "Whether D-PSGD on a ring learns from a sample as much as all-reduce does, over the rate, and how much sooner "
        "it reaches a target than a server on a slow network, than EAMSGD, and than one worker, by "
        "[the protocol](../../docs/explanation/papers.md)."
    ),
    assumptions=(
        Assumption("graph", "ring", "published"),
        Assumption("order of mixing", "gradient at the un-mixed parameters", "published"),
        Assumption("network of L3a", "10 Mbit/s, messages of ResNet-20", "published"),
        Assumption("networks of L6", "as in L7, and 10 Mbit/s with gradients of 50 ms", "ours"),
        Assumption("network of L7", "10 Gbit/s, gradients of 30 ms", "ours"),
        Assumption("gradient times in L6 and L7", "equal for all workers, so that waiting costs nothing", "ours"),
        Assumption("EAMSGD", "momentum 0.9, moving rate 0.9 / p, tau = 1 and 10", "unconfirmed"),
        Assumption("momentum", "Nesterov 0.9, local", "ours"),
        Assumption("schedule", "cosine; 5,120 steps, in L3a, L6 and L7 tuned with the rate", "ours"),
        *ON_BOTH_TASKS,
    ),
    studies=tuple(_studies()),
    claims=(
        Claim(stated("L1"), ("per_sample", "null_per_sample", "rates"), l1, TASKS),
        Claim(stated("L3a"), ("slow", "null_slow"), l3a, TASKS),
        Claim(stated("L6"), (*ELASTIC, *(f"null_{study}" for study in ELASTIC)), l6, TASKS),
        Claim(stated("L7"), ("speed_up", "null_speed_up"), l7, TASKS),
    ),
    charts=on_each_task(
        "rates",
        "Test loss after 5,120 steps of eight workers",
        lambda _: ("rates",),
        lambda evidence, task: losses_over_rates(evidence[f"rates_{task}"]),
    ),
)
