"""Write what a contest shows: the verdict, the table and the figure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from dsgd.record.written import write_atomically
from dsgd.report.contest import Contender, contest
from dsgd.report.contest_figure import contest_figure, contest_parts
from dsgd.report.contest_table import contest_table, ratio_text, tuning_notes
from dsgd.report.contest_verdict import contest_verdict
from dsgd.report.cost import Prices
from dsgd.report.setting import setting_text
from dsgd.report.style import drawing, save, svg_text
from dsgd.safe_text import for_terminal, lines_for_terminal


def write_contest(
    contenders: Sequence[Contender],
    out: Path,
    prices: Prices | None = None,
    width: str = "wide",
    formats: Sequence[str] = ("png", "svg", "pdf"),
    log: Collection[str] | None = None,
    by_cost: bool = False,
) -> str:
    """Write `contest.csv`, `.md`, `.tex` and `.setting.json`, the figure `contest` in each format, and `verdict.txt`
    into an existing folder. prices: of a cluster. by_cost: the cost decides. width, log: of
    `style.drawing`.

    Returns what verdict.txt says. Raises ValueError
    for contenders that cannot be compared, OSError for files that cannot be written."""
    result = contest(_with_safe_names(contenders), prices if by_cost else None)
    text = contest_verdict(result)
    lines = [
        text,
        *([f"times: {ratio_text(result)} [interval]"] * (len(result.standings) > 1)),
        setting_text(result.runs),
    ]
    text = lines_for_terminal("\n".join([*lines, *tuning_notes(result)]))
    write_atomically(out / "verdict.txt", f"{text}\n".encode())
    contest_table(result, prices).write(out / "contest")
    with drawing(width, log):
        figure = contest_figure(result)
        for kind in formats:
            save(figure, out / f"contest.{kind}")
    return text


def page_figures(
    contenders: Sequence[Contender], log: Collection[str] | None = None, prices: Prices | None = None
) -> list[str]:
    """Return the parts of the figure as SVG documents for a page, of a size whose letters can be read on any screen.

    prices: by which costs are compared; None: times."""
    with drawing("screen", log):
        return [svg_text(figure) for figure in contest_parts(contest(_with_safe_names(contenders), prices))]


def _with_safe_names(contenders: Sequence[Contender]) -> list[Contender]:
    return [
        replace(contender, name=for_terminal(contender.name), algo=for_terminal(contender.algo))
        for contender in contenders
    ]
