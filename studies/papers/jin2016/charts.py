"""The paper's figures, and the map of what decides its claim."""

from __future__ import annotations

from matplotlib.figure import Figure

from dsgd.report.contest import Contender, final_loss
from dsgd.report.interval import estimate
from studies.papers.jin2016.claims import ASYNCHRONOUS, advantage, study_of
from studies.papers.jin2016.studies import BYTES_PER_S, FEW, GRADIENT_S, LAST, MANY, MESSAGE
from studies.papers.lian2017.studies import TARGET_LOSS
from studies.reproduction.chart_panels import FORMULA, ChartLine, ChartPanel, chart, curve
from studies.reproduction.paper import Evidence
from studies.reproduction.verdict import exactly

BUDGETS = {10: ("few_uneven", FEW), 20: ("many_uneven", MANY[:-1]), 40: ("hundred", (LAST,))}  # study, nodes; by epochs


def loss_against_time(evidence: Evidence) -> Figure:
    """Draw the test loss against time for 8, 16 and 100 nodes."""
    panels = []
    for nodes in (8, 16, 100):
        contenders = [contender for contender in evidence[study_of(nodes)].contenders if contender.nodes == nodes]
        lines = [
            curve(_called(contender), contender.runs, "time_s", "test_loss", int(_period(contender) == 10))
            for contender in contenders
            if not _is_exposed(contender)
        ]
        title = f"{nodes} nodes"
        panels.append(ChartPanel(title, "time (virtual s)", "test loss", lines, log_y=True, level=TARGET_LOSS))
    return chart(panels, ["jitter 10 %, each tuned; sync overlaps; dashed: the target"])


def final_loss_against_nodes(evidence: Evidence) -> Figure:
    """Draw the final test loss against the number of nodes, in a panel for each budget."""
    panels = []
    for study, epochs in (("few_uneven", 10), ("many_uneven", 20)):
        contenders = [contender for contender in evidence[study].contenders if not _is_exposed(contender)]
        lines = []
        for name in dict.fromkeys(map(_called, contenders)):
            alike = [contender for contender in contenders if _called(contender) == name]
            points = [
                (float(contender.nodes), estimate([final_loss(run) for run in contender.runs])) for contender in alike
            ]
            lines.append(ChartLine(name, alike[0].algo, points, int(_period(alike[0]) == 10)))
        panels.append(ChartPanel(f"{epochs} epochs", "nodes", "final test loss", lines, log_x=True))
    return chart(panels, ["jitter 10 %, each tuned; sync overlaps"])


def crossover_map(evidence: Evidence) -> Figure:
    """Draw the advantage of each asynchronous method over all-reduce against nodes, over overlap and jitter."""
    panels = []
    for jitter, budgets in ((0, {10: ("few_even", FEW)}), (10, BUDGETS)):
        for overlap in (True, False):
            lines = [
                ChartLine(
                    f"{algo}, {epochs} epochs",
                    algo,
                    [(float(n), advantage(evidence, study, n, overlap, algo)) for n in nodes],
                    list(BUDGETS).index(epochs),
                )
                for algo in ASYNCHRONOUS
                for epochs, (study, nodes) in budgets.items()
            ]
            title = f"jitter {jitter} %, {'overlap' if overlap else 'no overlap'}"
            panels.append(ChartPanel(title, "nodes", "time of sync over theirs", lines, log_x=True, level=1.0))
    return chart(
        panels,
        [
            "above the dashed line the asynchronous method, by its better period, is first",
            f"within 20 epochs nobody reaches the target on {LAST} nodes",
        ],
    )


def server_throughput(evidence: Evidence) -> Figure:
    """Draw the samples per second behind one server against the number of nodes."""
    lines = []
    for variant, tau in enumerate((1, 10)):
        runs = evidence["served_easgd"].where(algo__tau=tau)
        points = [(float(run.setting("nodes")), exactly(run.final("samples") / run.final("time_s"))) for run in runs]
        lines.append(ChartLine(f"easgd, tau = {tau}", "easgd", points, variant))
    runs = evidence["served_downpour"].runs
    points = [(float(run.setting("nodes")), exactly(run.final("samples") / run.final("time_s"))) for run in runs]
    lines.append(ChartLine("downpour", "downpour", points))
    batch = runs[0].setting("batch_size")
    bound = [(1.0, exactly(batch * BYTES_PER_S / MESSAGE)), (100.0, exactly(batch * BYTES_PER_S / MESSAGE))]
    ideal = [(1.0, exactly(batch / GRADIENT_S)), (100.0, exactly(100 * batch / GRADIENT_S))]
    lines += [ChartLine("port of the server, tau = 1", FORMULA, bound), ChartLine("no communication", FORMULA, ideal)]
    return chart(
        [ChartPanel("10 Gbit/s, 46.8 MB", "nodes", "samples per virtual second", lines, log_x=True, log_y=True)]
    )


def _called(contender: Contender) -> str:
    """Return `gossip, tau = 10`; the algorithm alone where it has no period."""
    return contender.algo if _period(contender) is None else f"{contender.algo}, tau = {_period(contender)}"


def _period(contender: Contender) -> int | None:
    """Return tau; None of all-reduce."""
    return None if contender.algo == "sync" else contender.runs[0].setting("algo.tau")


def _is_exposed(contender: Contender) -> bool:
    """Return whether this is an all-reduce that does not overlap."""
    return contender.algo == "sync" and not contender.runs[0].setting("algo.overlap")
