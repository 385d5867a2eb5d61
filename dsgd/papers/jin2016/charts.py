"""The paper's figures, and the map of what decides its claim."""

from __future__ import annotations

from matplotlib.figure import Figure

from dsgd.papers.jin2016.claims import ASYNCHRONOUS, advantage, study_of
from dsgd.papers.jin2016.studies import BYTES_PER_S, FEW, GRADIENT_S, MANY, MESSAGE
from dsgd.papers.lian2017.studies import TARGET_LOSS
from dsgd.report.contest import Contender, final_loss
from dsgd.report.interval import estimate
from dsgd.reproduction.charts import FORMULA, ChartLine, ChartPanel, chart, curve
from dsgd.reproduction.paper import Evidence
from dsgd.reproduction.verdict import exactly


def loss_against_time(found: Evidence) -> Figure:
    """Draw the test loss against time for 8, 16 and 100 nodes."""
    panels = []
    for nodes in (8, 16, 100):
        contenders = [one for one in found[study_of(nodes)].contenders if one.nodes == nodes]
        lines = [
            curve(_called(one), one.runs, "time_s", "test_loss", int(_period(one) == 10))
            for one in contenders
            if not _is_exposed(one)
        ]
        title = f"{nodes} nodes"
        panels.append(ChartPanel(title, "time (virtual s)", "test loss", lines, log_y=True, level=TARGET_LOSS))
    return chart(panels, ["jitter 10 %, each tuned; sync overlaps; dashed: the target"])


def final_loss_against_nodes(found: Evidence) -> Figure:
    """Draw the final test loss against the number of nodes."""
    drawn = {_called(one): one for one in found["many_uneven"].contenders if not _is_exposed(one)}
    lines = []
    for name, example in drawn.items():
        points = [
            (float(one.nodes), estimate([final_loss(run) for run in one.runs]))
            for study in ("few_uneven", "many_uneven")
            for one in found[study].contenders
            if _called(one) == name
        ]
        lines.append(ChartLine(name, example.algo, points, int(_period(example) == 10)))
    return chart([ChartPanel("jitter 10 %", "nodes", "final test loss", lines, log_x=True)])


def crossover_map(found: Evidence) -> Figure:
    """Draw the advantage of each asynchronous method over all-reduce against nodes, over overlap and jitter."""
    panels = []
    for jitter, studies in ((0, dict.fromkeys(FEW, "few_even")), (10, {n: study_of(n) for n in (*FEW, *MANY)})):
        for overlap in (True, False):
            lines = [
                ChartLine(
                    algo,
                    algo,
                    [(float(n), advantage(found, study, n, overlap, algo)) for n, study in studies.items()],
                )
                for algo in ASYNCHRONOUS
            ]
            title = f"jitter {jitter} %, {'overlap' if overlap else 'no overlap'}"
            panels.append(ChartPanel(title, "nodes", "time of sync over theirs", lines, log_x=True, level=1.0))
    return chart(
        panels,
        [
            "above the dashed line the asynchronous method, by its better period, is first",
            "10 epochs on up to 16 nodes, 20 on more",
        ],
    )


def server_throughput(found: Evidence) -> Figure:
    """Draw the samples per second behind one server against the number of nodes."""
    lines = []
    for variant, tau in enumerate((1, 10)):
        runs = found["served_easgd"].where(algo__tau=tau)
        points = [(float(run.setting("nodes")), exactly(run.final("samples") / run.final("time_s"))) for run in runs]
        lines.append(ChartLine(f"easgd, tau = {tau}", "easgd", points, variant))
    runs = found["served_downpour"].runs
    points = [(float(run.setting("nodes")), exactly(run.final("samples") / run.final("time_s"))) for run in runs]
    lines.append(ChartLine("downpour", "downpour", points))
    batch = runs[0].setting("batch_size")
    bound = [(1.0, exactly(batch * BYTES_PER_S / MESSAGE)), (100.0, exactly(batch * BYTES_PER_S / MESSAGE))]
    ideal = [(1.0, exactly(batch / GRADIENT_S)), (100.0, exactly(100 * batch / GRADIENT_S))]
    lines += [ChartLine("port of the server, tau = 1", FORMULA, bound), ChartLine("no communication", FORMULA, ideal)]
    return chart(
        [ChartPanel("10 Gbit/s, 46.8 MB", "nodes", "samples per virtual second", lines, log_x=True, log_y=True)]
    )


def _called(one: Contender) -> str:
    """Return `gossip, tau = 10`; the algorithm alone where it has no period."""
    return one.algo if _period(one) is None else f"{one.algo}, tau = {_period(one)}"


def _period(one: Contender) -> int | None:
    """Return tau; None of all-reduce."""
    return None if one.algo == "sync" else one.runs[0].setting("algo.tau")


def _is_exposed(one: Contender) -> bool:
    """Return whether this is an all-reduce that does not overlap."""
    return one.algo == "sync" and not one.runs[0].setting("algo.overlap")
