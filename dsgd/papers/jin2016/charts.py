"""The paper's figures, and the map of what decides its claim."""

from __future__ import annotations

from matplotlib.figure import Figure

from dsgd.papers.jin2016.claims import ASYNCHRONOUS, advantage, study_of
from dsgd.papers.jin2016.studies import BYTES_PER_S, FEW, GRADIENT_S, MANY, MESSAGE, TARGET_LOSS
from dsgd.report.contest import final_loss
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
            curve(_called(one.name), one.runs, "time_s", "test_loss", int("tau=10" in one.name or "False" in one.name))
            for one in contenders
            if "overlap=False" not in one.name
        ]
        title = f"{nodes} nodes"
        panels.append(ChartPanel(title, "time (virtual s)", "test loss", lines, log_y=True, level=TARGET_LOSS))
    return chart(panels, ["jitter 10 %, each tuned; sync overlaps; dashed: the target"])


def final_loss_against_nodes(found: Evidence) -> Figure:
    """Draw the final test loss against the number of nodes."""
    names = dict.fromkeys(_called(one.name) for one in found["many_uneven"].contenders if "False" not in one.name)
    lines = []
    for name in names:
        points = [
            (float(one.nodes), estimate([final_loss(run) for run in one.runs]))
            for study in ("few_uneven", "many_uneven")
            for one in found[study].contenders
            if _called(one.name) == name
        ]
        lines.append(ChartLine(name, name.partition(",")[0], points, int("10" in name)))
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


def _called(name: str) -> str:
    """Return `gossip, tau = 10` for a contender's name with options and nodes."""
    words = name.partition(", ")[0].split()
    options = [word.replace("=", " = ") for word in words[1:] if word.startswith("tau")]
    return ", ".join([words[0], *options])
