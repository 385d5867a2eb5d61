"""Tables on terminals of any width, as Markdown and as LaTeX."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path

import pytest
from rich.console import Console

from dsgd.record.reader import find_runs
from dsgd.report.interval import Estimate
from dsgd.report.table import summary_table
from dsgd.report.table_layout import Cell, ReportTable, shown
from tests.support.each_row import each_row
from tests.support.records import ALGORITHMS, reach, write_record

WIDTHS = (60, 80, 100, 160)


def printed(table: ReportTable, width: int) -> list[str]:
    """The lines of the table on a terminal of that width."""
    console = Console(width=width, file=io.StringIO(), record=True)
    table.print(console)
    return console.export_text().splitlines()


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> ReportTable:
    """Six algorithms with three seeds each, of which gossip never reaches its target, and one reaches it once."""
    top = tmp_path_factory.mktemp("runs")
    for algo in ALGORITHMS:
        for seed in range(3):
            folder = write_record(top / f"{algo}{seed}", algo, seed=seed)
            missed = algo == "gossip" or (algo == "dpsgd" and seed > 0)
            reach(folder, None if missed else 1.23456 + seed)
    return summary_table(find_runs([top]))


@each_row("width", WIDTHS)
def test_columns_are_left_out_and_digits_never(compared: ReportTable, width: int):
    """Run and time to target come first; every number that is shown is whole, and what has no room is named."""
    lines = printed(compared, width)
    assert max(map(len, lines)) <= width
    rows = {line.split()[0]: line for line in lines if line.split()[0] in ALGORITHMS}
    assert set(rows) == set(ALGORITHMS)
    for cells in compared.cells:
        texts = [text for text in re.split(r"\s{2,}", rows[cells[0]].strip()) if text]
        assert texts == cells[: len(texts)]
        assert len(texts) >= 2
    shown_count = len(re.split(r"\s{2,}", rows["sync"].strip()))
    note = " ".join(" ".join(lines).split())
    assert f"no room at {width} characters: {', '.join(compared.headings[shown_count:])}" in note
    assert compared.headings[:2] == ["run", "time to target (s)"]


def test_three_seeds_are_one_row_with_median_and_interval(compared: ReportTable):
    rows = {row[0]: row for row in compared.cells}
    assert len(rows) == len(ALGORITHMS)
    assert rows["sync"][1] == "2.235 [1.235, 3.235]"
    assert rows["dpsgd"][1] == "> 77.39 [1.235, > 79.16]"
    assert rows["gossip"][1] == "> 28.95"
    assert rows["sync"][compared.headings.index("seeds")] == "3"
    assert "75% from 3 seeds" in compared.caption


def test_a_long_name_goes_over_several_lines(tmp_path: Path):
    """The other columns keep their place, and no part of the name is lost."""
    for rate in (0.1, 0.2):
        write_record(tmp_path / str(rate), "sync", **{"optimizer.lr": rate, "model.hidden": [int(100 * rate)] * 12})
    lines = printed(summary_table(find_runs([tmp_path])), 80)
    assert max(map(len, lines)) <= 80
    assert "hidden=[10, 10, 10, 10," in "\n".join(lines)
    assert "\n".join(lines).count("10,") == "\n".join(lines).count("20,") == 11
    assert [line.split()[-1] for line in lines if line.startswith("lr=")] == ["lr=0.1", "lr=0.2"]


def test_latex_and_markdown_hold_all_columns(compared: ReportTable, tmp_path: Path):
    compared.write(tmp_path / "summary")
    markdown = (tmp_path / "summary.md").read_text().splitlines()
    latex = (tmp_path / "summary.tex").read_text().splitlines()
    assert latex[0] == r"% \usepackage{booktabs}"
    begins = [i for i, line in enumerate(latex) if line.startswith(r"\begin{tabular}{@{}lr")]
    read: list[list[str]] = [[] for _ in range(1 + len(ALGORITHMS))]
    for i in begins:
        assert [latex[i + k] for k in (1, 3, 4 + len(ALGORITHMS))] == [r"\toprule", r"\midrule", r"\bottomrule"]
        lines = [line for line in latex[i + 2 : i + 4 + len(ALGORITHMS)] if line != r"\midrule"]
        plain = [line.removesuffix(r" \\").replace(r"\%", "%").replace(r"\textgreater{}", ">") for line in lines]
        body = [line.split(" & ") for line in plain]
        assert sum(max(map(len, column)) for column in zip(*body, strict=True)) < 80
        for row, whole in zip(body, read, strict=True):
            whole += row[bool(whole) :]
    assert 1 < len(begins) < len(compared.headings) / 2
    assert read == [line.strip("| ").split(" | ") for line in [markdown[0], *markdown[2:]]][: len(read)]


def test_a_row_of_latex_is_no_argument_of_the_one_before_it(tmp_path: Path):
    rows: list[list[Cell]] = [["*a", 1], ["[b]", 2]]
    ReportTable(["run", "x"], frozenset({"run"}), rows, [["run", "x"]], "").write(tmp_path / "table")
    assert r"\midrule" + "\n{}*a & 1 \\\\\n{}[b] & 2 \\\\\n" in (tmp_path / "table.tex").read_text()


@each_row(
    ("value", "text"),
    [(0.0, "0"), (0.9, "0.9000"), (123.456, "123.5"), (999.95, "1000."), (1234.4, "1234"), (123456.7, "123457"),
     (2.5e-6, "2.500e-06"), (3.21e12, "3.210e+12"), (28021, "28021"), (math.nan, "-"), ("never", "never"),
     (-0.5, "-0.5000"), (math.inf, "never"), (Estimate(0.5, 0.25, 1.0, 3), "0.5000 [0.2500, 1.000]"),
     (Estimate(0.5, 0.5, 0.5 + 1e-12, 3), "0.5000")],
)  # fmt: skip
def test_numbers_are_shown_with_four_significant_digits(value: Cell, text: str):
    assert shown(value) == text
