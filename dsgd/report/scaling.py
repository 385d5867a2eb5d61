"""Draw time to target and speed-up against the number of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from dsgd.record.reader import Run
from dsgd.report.crossing import time_to_target_s
from dsgd.report.curves import time_label, wants_log
from dsgd.report.labels import series, target_text
from dsgd.report.style import NoData, finish, panels, plot_band


@dataclass(frozen=True)
class Scaling:
    """One algorithm and configuration over node counts.

    seconds: node count (ascending): time to target of each of its runs, only where every run reached it.
    missed: the node counts where some run did not."""

    label: str
    seconds: dict[int, list[float]]
    missed: list[int]

    @property
    def base(self) -> int:
        """Return the smallest node count that was run."""
        return min([*self.seconds, *self.missed])

    def speed_up(self) -> dict[int, list[float]]:
        """Return, per run, the mean time at the base over its own time; empty if the base missed the target."""
        if self.base not in self.seconds:
            return {}
        first = float(np.mean(self.seconds[self.base]))
        return {nodes: [first / seconds for seconds in times] for nodes, times in self.seconds.items()}


def scalings(runs: Sequence[Run]) -> list[Scaling]:
    """Gather the runs with a target by what differs apart from node count and seed.

    Raises NoData unless there are two node counts with a target, one of them reached."""
    aimed = [run for run in runs if run.target is not None and run.nodes]
    counts = {run.nodes for run in aimed}
    if len(counts) < 2:
        raise NoData(
            "no run has a target accuracy" if not counts else f"all runs with a target have nodes={counts.pop()}"
        )
    found = []
    for one in series(aimed, apart_from=("nodes",)):
        times: dict[int, list[float | None]] = {}
        for run in sorted(one.runs, key=lambda run: run.nodes or 0):
            times.setdefault(run.nodes or 0, []).append(time_to_target_s(run))
        reached = {nodes: [s for s in each if s is not None] for nodes, each in times.items() if None not in each}
        found.append(Scaling(one.label, reached, [nodes for nodes in times if nodes not in reached]))
    if not any(one.seconds for one in found):
        raise NoData("no run reached its target")
    return found


def time_to_target_figure(runs: Sequence[Run]) -> Figure:
    """Draw time to target against nodes, one line per algorithm. Raises NoData."""
    found = scalings(runs)
    figure, axes, handles, notes = _draw(found, [one.seconds for one in found])
    axes.set_ylabel(f"{time_label(runs)}\nto test accuracy {target_text(runs)}")
    if wants_log(np.array([seconds for one in found for each in one.seconds.values() for seconds in each])):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    return finish(figure, runs, handles, notes)


def speed_up_figure(runs: Sequence[Run]) -> Figure:
    """Draw the speed-up over the same algorithm's smallest node count, and linear speed-up. Raises NoData."""
    found = scalings(runs)
    ratios = [one.speed_up() for one in found]
    drawn = [one for one, ratio in zip(found, ratios, strict=True) if len(ratio) > 1]
    if not drawn:
        raise NoData("no algorithm reached its target at its smallest node count and at another")
    figure, axes, handles, notes = _draw(found, [ratio if len(ratio) > 1 else {} for ratio in ratios])
    bases = {one.base for one in drawn}
    if len(bases) == 1:
        base = bases.pop()
        axes.set_ylabel(f"speed-up over\nthe same algorithm on {base} node{'s' * (base != 1)}")
        counts = np.array([base, max(nodes for one in drawn for nodes in one.seconds)], dtype=float)
        (handles["linear speed-up"],) = axes.plot(counts, counts / base, color="#777777", linewidth=1.0, zorder=1.5)
    else:
        axes.set_ylabel("speed-up over the same algorithm's\nsmallest node count")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    return finish(figure, runs, handles, notes)


def _draw(
    found: Sequence[Scaling], values: Sequence[dict[int, list[float]]]
) -> tuple[Figure, Axes, dict[str, Line2D], list[str]]:
    """Draw values by node count, one line each; returns the figure, its panel, legend entries and notes."""
    figure, (axes,) = panels(1, [_legend(one) for one in found])
    handles: dict[str, Line2D] = {}
    for i, (one, value) in enumerate(zip(found, values, strict=True)):
        if value:
            mean, low, high = ([float(of(each)) for each in value.values()] for of in (np.mean, min, max))
            handles[_legend(one)] = plot_band(axes, i, list(value), mean, low, high)
    counts = sorted({nodes for value in values for nodes in value})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(nodes) for nodes in counts])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("nodes")
    several = any(len(each) > 1 for value in values for each in value.values())
    return figure, axes, handles, ["lines: mean over seeds; bands: smallest to largest"] * several


def _legend(one: Scaling) -> str:
    missed = ", ".join(map(str, one.missed))
    return f"{one.label} (target missed at {missed})" if missed else one.label
