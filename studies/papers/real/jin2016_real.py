"""Jin et al. 2016 at the real scale: maps of who is first, over overlap, jitter and the number of nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from matplotlib.figure import Figure

from dsgd.report.contest import Contender
from studies.papers.real.charts import on_each_task, soonest_map
from studies.papers.real.tasks import NULL, ON_BOTH_TASKS, TASKS, ending, null_of, race, stated, sync
from studies.reproduction.criterion import Statement
from studies.reproduction.fair import Null, loss_ratio, sample_ratio, time_ratio
from studies.reproduction.paper import Assumption, Claim, Evidence, Paper, Study, listed, named, of_task
from studies.reproduction.verdict import NEARNESS, Check, Finding, nearness_above, nearness_below, over_region

FEW, LAST = (4, 8, 16), 100
AROUND = (16, 64)  # the crossover
MANY = {"shapes": (32, 64, LAST), "fashion": (64, LAST)}  # where a run of the ResNet-8 takes minutes
TAUS = (1, 10)
JITTER = 0.1  # under which values are chosen
JITTERS = (0.0, 0.3, 1.0)  # under which they are measured again
LAW = "cluster.jitter_distribution=lognormal"  # whose tail is heavy: its skew is 3 j + j^3
ASYNCHRONOUS = ("easgd", "gossip")
TUNED = f"each tuned at a jitter of {100 * JITTER:.0f} %"

SYNC = [{"algo": "sync", "algo.overlap": "true"}, {"algo": "sync", "algo.overlap": "false"}]
EASGD = [{"algo": "easgd", "algo.tau": tau} for tau in TAUS]
GOSSIP = [{"algo": "gossip", "algo.mode": mode, "algo.tau": tau} for mode in ("pull", "push") for tau in TAUS]
SELDOM = [options for options in (*EASGD, *GOSSIP) if options["algo.tau"] == TAUS[-1]]
SLOWER = (
    "All of this is at 10 Gbit/s, where an all-reduce takes a third of a gradient. An estimate of other networks, by "
    "the samples of the runs on shapes and simulated steps with 10 % jitter: at 1 Gbit/s an overlapping all-reduce "
    "takes 1.7, 1.1 and 0.7 times as long as pushing gossip with tau = 10, on 4, 8 and 16 nodes; at 0.5 Gbit/s 3.2, "
    "2.1 and 1.3 times. The 18 comparisons of a cell hold together with 94 %: ten seeds are enough for twelve."
)

Conditions = Mapping[float, Sequence[Contender]]  # all contenders under each jitter
JudgeCell = Callable[[Sequence[Contender], bool], Finding]  # overlap


def race_on(nodes: int) -> str:
    """Return the name of the study that races on so many nodes: one for each number, so that each can end by itself."""
    return f"{_group(nodes)}_{nodes}"


def j1(evidence: Evidence) -> Finding:
    """Compare times to the target on few nodes, in every cell of overlap and jitter."""
    claim = stated("J1")

    def cell(contenders: Sequence[Contender], overlap: bool) -> Finding:
        count = len(FEW) * len([*EASGD, *GOSSIP])
        by_algo = []
        for algo in ASYNCHRONOUS:
            of_algo = [contender for contender in contenders if contender.algo in ("sync", algo)]
            checks = (_against_all("sooner", claim, of_algo, nodes, overlap, evidence, count) for nodes in FEW)
            by_algo.append(claim.judged([max(variants, key=nearness_above) for variants in checks]))
        return max(by_algo, key=lambda finding: (NEARNESS.index(finding.verdict), _middle(finding)))

    return _map(_conditions(evidence, FEW), cell, SLOWER)


def _against_all(
    name: str,
    claim: Statement,
    contenders: Sequence[Contender],
    nodes: int,
    overlap: bool,
    evidence: Evidence,
    count: int,
) -> list[Check]:
    """Check the time of all-reduce over that of each asynchronous contender on so many nodes. name: of the criterion.
    count: of the claim's checks."""
    exact, null = sync(contenders, nodes, overlap), _null(evidence, nodes)
    tested = {contender.name: contender for contender in evidence[race_on(nodes)].contenders}
    checks = []
    for contender in contenders:
        if contender.algo in ASYNCHRONOUS and contender.nodes == nodes:
            ratio = time_ratio(exact, contender, count, null, (tested[exact.name], tested[contender.name]))
            checks.append(claim.check(name, f"{nodes} nodes: time of sync over that of {contender.name}", ratio))
    return checks


def _middle(finding: Finding) -> float:
    """Return the ratio that decides whether an algorithm can pass at two of three numbers of nodes."""
    return median(check.value.high for check in finding.checks)


def j2(evidence: Evidence) -> Finding:
    """Compare losses at the end, and times to the target, on 100 nodes."""
    claim, contenders = stated("J2"), evidence["hundred"].contenders
    exact, null = evidence["hundred"].contender(algo="sync"), null_of(evidence, "hundred", LAST)
    others = [contender for contender in contenders if contender is not exact]
    count = 2 * len(others)
    checks = [
        claim.check("loss", f"final test loss, sync over {contender.name}", loss_ratio(exact, contender, count, null))
        for contender in others
    ]
    race_null = _null(evidence, LAST)
    racing = evidence[race_on(LAST)].contenders
    exact = sync(racing, LAST, overlap=True)
    for contender in racing:
        if contender.algo in ASYNCHRONOUS:
            ratio = time_ratio(exact, contender, count, race_null)
            checks.append(claim.check("time", f"time to the target, sync over {contender.name}", ratio))
    return claim.judged(checks)


def j3(evidence: Evidence) -> Finding:
    """Find whether all-reduce is behind with 16 nodes, and first with 64, in every cell of overlap and jitter."""
    claim = stated("J3")
    count = 2 * len([*EASGD, *GOSSIP])
    before, last = AROUND

    def cell(contenders: Sequence[Contender], overlap: bool) -> Finding:
        behind_some = _against_all("before", claim, contenders, before, overlap, evidence, count)
        before_all = _against_all("behind", claim, contenders, last, overlap, evidence, count)
        return claim.judged([max(behind_some, key=nearness_above), min(before_all, key=nearness_below)])

    return _map(_conditions(evidence, AROUND), cell)


def j4(evidence: Evidence) -> Finding:
    """Compare samples to the target of tau = 1 and 10, on eight nodes."""
    claim, nodes = stated("J4"), 8
    pairs = [({"algo": "easgd"}, "easgd"), ({"algo": "gossip", "algo__mode": "pull"}, "gossip, pull")]
    pairs.append(({"algo": "gossip", "algo__mode": "push"}, "gossip, push"))
    checks = []
    for settings, name in pairs:
        often, seldom = (evidence[race_on(nodes)].contender(algo__tau=tau, **settings) for tau in TAUS)
        ratio = sample_ratio(seldom, often, len(pairs), _null(evidence, nodes))
        checks.append(claim.check("samples", f"{name}: samples to the target, tau = 10 over tau = 1", ratio))
    return claim.judged(checks)


def _conditions(evidence: Evidence, counts: Sequence[int], task: str | None = None) -> Conditions:
    """Return the contenders on these numbers of nodes, together, under each jitter."""
    conditions: dict[float, list[Contender]] = defaultdict(list)
    for nodes in counts:
        logged = evidence[race_on(nodes) if task is None else of_task(race_on(nodes), task)]
        conditions[JITTER] += logged.contenders
        for cell in logged.elsewhere:
            conditions[cell.conditions["cluster.jitter"]] += cell.contenders
    return conditions


def _map(conditions: Conditions, cell: JudgeCell, reason: str = "") -> Finding:
    """Judge every cell of overlap and jitter. reason: of the finding."""
    return over_region(
        {
            f"jitter {100 * jitter:.0f} %, {'overlap' if overlap else 'no overlap'}": cell(contenders, overlap)
            for jitter, contenders in conditions.items()
            for overlap in (True, False)
        },
        reason,
    )


def _null(evidence: Evidence, nodes: int) -> Null:
    return null_of(evidence, race_on(nodes), nodes, f"null_{_group(nodes)}")


def _group(nodes: int) -> str:
    return "few" if nodes in FEW else "many"


def _studies() -> Iterator[Study]:
    under = (LAW, f"cluster.jitter={JITTER}")
    jitters = f"compare.whatif={{cluster.jitter: [{', '.join(map(str, JITTERS))}]}}"
    for task in TASKS:
        for group, counts, contenders, more in (
            ("few", FEW, [*SYNC, *EASGD, *GOSSIP], ()),
            ("many", MANY[task], [*SYNC, *SELDOM], ("eval.every_steps=32",)),
        ):
            for nodes in counts:
                yield race(race_on(nodes), task, named(contenders), f"nodes={nodes}", *under, jitters, *more)
            all_counts = f"nodes={listed(counts)}"
            yield race(f"null_{group}", task, named(SYNC[:1]), all_counts, *under, *more, NULL)
        hundred = (f"nodes={LAST}", *under, "eval.every_steps=640")
        yield ending("hundred", task, named([*SYNC[:1], *SELDOM]), *hundred)
        yield ending("null_hundred", task, named(SYNC[:1]), *hundred, NULL)


def _races(counts: Sequence[int]) -> list[str]:
    return [race_on(nodes) for nodes in counts]


def _draw(evidence: Evidence, task: str, counts: Sequence[int]) -> Figure:
    run = [nodes for nodes in counts if of_task(race_on(nodes), task) in evidence]
    return soonest_map(_conditions(evidence, run, task))


PAPER = Paper(
    key="jin2016_real",
    order=1,
    title="How to scale distributed deep learning? At the real scale",
    reference="Jin, Yuan, Iandola, Keutzer 2016, arXiv 1611.04581.",
    summary=(
        "When EASGD and gossip are ahead of all-reduce, and when behind: maps over overlap, jitter and the number of "
        "nodes, by [the protocol](../../docs/explanation/papers.md)."
    ),
    assumptions=(
        Assumption("messages", "ResNet-18, 46.8 MB", "published"),
        Assumption("network", "10 Gbit/s, 50 us", "ours"),
        Assumption(
            "gradient time",
            "0.2 s, as of 32 images, whatever the batch; jitter of 0, 10, 30 and 100 %, log-normal",
            "ours",
        ),
        Assumption("periods", "tau = 1 and 10; on more than 16 nodes 10", "published"),
        Assumption("momentum", "Nesterov 0.9, local", "published"),
        Assumption("moving rate of EASGD", "0.9 / p", "unconfirmed"),
        Assumption("schedule", "cosine, over a number of steps that is tuned with the rate", "ours"),
        Assumption("target", "the test loss of one worker at 80 % of 20,480 steps: 0.3 and 0.28", "ours"),
        *ON_BOTH_TASKS,
    ),
    studies=tuple(_studies()),
    claims=(
        Claim(stated("J1"), (*map(race_on, FEW), "null_few"), j1, TASKS),
        Claim(stated("J2"), ("hundred", "null_hundred", race_on(LAST), "null_many"), j2, TASKS),
        Claim(stated("J3"), (*map(race_on, AROUND), "null_few", "null_many"), j3, TASKS),
        Claim(stated("J4"), (race_on(8), "null_few"), j4, TASKS),
    ),
    charts=(
        *on_each_task(
            "map_few",
            f"Who reaches the target first on few nodes, by jitter and form of all-reduce, {TUNED}",
            lambda _: _races(FEW[:2]),
            lambda evidence, task: _draw(evidence, task, FEW),
            more=_races(FEW[2:]),
        ),
        *on_each_task(
            "map",
            f"Who reaches the target first, by nodes, jitter and form of all-reduce, {TUNED}",
            lambda task: _races((*FEW, *MANY[task])),
            lambda evidence, task: _draw(evidence, task, (*FEW, *MANY[task])),
        ),
    ),
)
