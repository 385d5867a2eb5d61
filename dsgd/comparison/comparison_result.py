"""Show the result of a comparison: tables, verdict and figures, printed and written into its folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from dsgd.comparison.comparison_figure import contender_series, page_figures, write_comparison
from dsgd.comparison.comparison_table import comparison_table
from dsgd.comparison.comparison_verdict import Overtaking
from dsgd.comparison.contenders import contender_scalings, rank_contenders
from dsgd.comparison.stages import ComparisonResult, contenders_of
from dsgd.comparison.tradeoffs import write_front, write_overtaking
from dsgd.comparison.winner_map import map_cell, write_map
from dsgd.host.terminal import table_console
from dsgd.record.safe_files import write_atomically
from dsgd.report.look import Look
from dsgd.report.page import page_text
from dsgd.report.scaling import write_scaling
from dsgd.report.setting import value_text
from dsgd.report.style import NoData
from dsgd.report.units import quantity


def report(result: ComparisonResult, look: Look, html: str | None) -> None:
    """Print tables, verdict and answers, and write them and the figures into the folder. html: the path of a page."""
    known = _report(result, look, html)
    if result.options.verdict == "front":
        _report_front(result, look)
    if result.cells:
        _report_map(result, look, known)
    _report_scaling(result, look, known)
    if result.overtaking is not None:
        _report_crossing(result.overtaking, result.folder, look, known)


def winner(result: ComparisonResult) -> Mapping[str, Any]:
    """Return the configuration of the first of the contenders, with the values that were chosen."""
    first = rank_contenders(result.contenders, result.options.deciding_prices).standings[0]
    return first.contender.runs[0].config


def _report(result: ComparisonResult, look: Look, html: str | None) -> list[str]:
    """Print the table and the verdict, and write both, and the figure, into the folder. html: the path of a page.

    Returns the lines below the table, so that other tables do not repeat them."""
    prices, deciding = result.options.prices, result.options.deciding_prices
    verdict = write_comparison(result.contenders, result.folder, prices, look, by_cost=deciding is not None)
    standings = rank_contenders(result.contenders, deciding)
    table = comparison_table(standings, prices)
    table.print(table_console())
    known = table.caption.split("\n")
    answer = "\n".join(line for line in verdict.split("\n") if line not in known)
    print(f"\n{answer}\nfigure: {result.folder / 'contest.png'}")
    if html is not None:
        figures = page_figures(result.contenders, look.log, deciding)
        page = page_text(standings.runs, verdict, figures, contender_series(standings))
        write_atomically(Path(html), page.encode())
        print(f"page: {html}")
    return known


def _report_map(result: ComparisonResult, look: Look, known: Collection[str]) -> None:
    """Print the winners under other conditions, and write the map into the folder. known: lines printed before."""
    whatif = result.options.whatif or {}
    axes = result.options.varied or list(whatif)[:1]
    others = {key: value_text(values[0]) for key, values in whatif.items() if key not in axes}
    named = [(quantity(key, [text]), text) for key, text in others.items()]
    fixed = [f"{axis.label}: {axis.text(text)}" for axis, text in named]
    shown_cells = [
        map_cell(
            {key: cell.conditions[key] for key in axes},
            rank_contenders(contenders_of(result.searches, cell.runs), result.options.deciding_prices),
            {search.entry.name for search in result.searches} - cell.measured,
        )
        for cell in result.cells
    ]
    notes = ["values chosen under the conditions of the comparison are kept", *fixed]
    measured = [run for cell in result.cells for of_contender in cell.runs.values() for run in of_contender]
    table = write_map(shown_cells, result.folder / "whatif", look, notes=notes, runs=measured)
    print()
    table.print(table_console(), known)
    print(f"map: {result.folder / 'whatif.png'}")


def _report_front(result: ComparisonResult, look: Look) -> None:
    """Print the Pareto front of time and cost, and draw it."""
    prices = result.options.prices
    assert prices is not None  # CompareOptions has checked it
    try:
        sentence = write_front(result.contenders, prices, result.folder / "front", look)
    except NoData as error:
        print(f"front: {error}")
        return
    print(f"{sentence}\nfront: {result.folder / 'front.png'}")


def _report_scaling(result: ComparisonResult, look: Look, known: Collection[str]) -> None:
    """Print speed-up and efficiency if contenders, or other conditions, differ in the number of nodes alone. known:
    lines printed before."""
    contenders = list(result.contenders)
    nodes = {contender.nodes for contender in contenders}
    for cell in result.cells:
        if list(cell.conditions) == ["nodes"] and len(nodes) == 1 and cell.conditions["nodes"] not in nodes:
            contenders += contenders_of(result.searches, cell.runs)
    scalings = contender_scalings(contenders)
    if not scalings or contenders[0].runs[0].target is None:
        return
    try:
        table = write_scaling(scalings, result.folder / "scaling", look)
    except NoData as error:
        print(f"scaling: {error}")
        return
    print()
    table.print(table_console(), known)
    print(f"scaling: {result.folder / 'scaling.png'}")


def _report_crossing(overtaking: Overtaking, folder: Path, look: Look, known: Collection[str]) -> None:
    """Print the value at which one contender overtakes the other, and write it. known: lines printed before."""
    table = write_overtaking(overtaking, folder / "crossing", look)
    print()
    table.print(table_console(), known)
    print(f"crossing: {folder / 'crossing.png'}")
