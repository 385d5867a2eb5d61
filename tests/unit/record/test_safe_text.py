"""Names that a stranger has chosen do nothing to what shows them."""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from pathlib import Path

from rich.console import Console

from dsgd.engines.dist.coordinator.messages import PRINTED_LIMIT
from dsgd.engines.dist.frames import printable
from dsgd.record.safe_text import (
    FORMULA,
    counted,
    for_csv,
    for_html,
    for_latex,
    for_markdown,
    for_terminal,
    lines_for_terminal,
    plain_number,
)
from dsgd.report.table_layout import ReportTable
from tests.support.each_row import each_row

HOSTILE = [
    "\x1b[2J\x1b]0;title\x07",  # clears the screen, sets the title of the window
    "a\rb\x08\x00\x7f\x9b31m",
    "a\u202egnp.exe\u2066\u200b",  # turns the direction of writing, hides
    "a\nb\u2028c\u2029d\x85e\x0b",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "`code` | b \\| c [link](javascript:x)",
    "\\input{/etc/passwd} % $x$ #1 ~^_",
    "$\\frac$ x$_$",
    "@SUM(A1)",
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-1+1",
    "\t=1",
    "[bold red]x[/bold red][link=http://x]y[/link]",
]


def is_calm(text: str) -> bool:
    return all(unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in text)


@each_row("name", HOSTILE)
def test_a_name_on_every_medium(name: str) -> None:
    for safe in (for_terminal(name), for_html(name), for_markdown(name), for_latex(name), str(for_csv(name))):
        assert is_calm(safe)
    assert not str(for_csv(name)).startswith(FORMULA)
    assert not re.search(r"[<>\"']", for_html(name))
    assert not re.search(r"<|(?<!\\)(\\\\)*[|`]|\]\(", for_markdown(name))
    assert not re.search(r"(?<!\\)[&%$#_]", for_latex(name))
    known = ("textbackslash", "textasciitilde", "textasciicircum", "textless", "textgreater", "textbar")
    assert set(re.findall(r"\\([a-z]+)", for_latex(name))) <= {*known}
    assert not re.search(r"[<>|\"`](?!{})", for_latex(name))


def test_latex_prints_what_is_written() -> None:
    """`<` and `>` would be inverted marks in text, two hyphens a dash, and the hyphen of a number no minus."""
    assert for_latex("> 40 [< 3, -0.5]") == r"\textgreater{} 40 [\textless{} 3, \(-\)0.5]"
    assert for_latex("a--b one-peer 1e-05 1.7×") == r"a-{}-b one-peer 1e-05 1.7\(\times\)"
    assert for_latex('|"`~^\\') == r"\textbar{}''\`{}\textasciitilde{}\textasciicircum{}\textbackslash{}"


def test_what_is_safe_stays_as_it_is() -> None:
    for text in ("gossip tau=10, 16 nodes", "Größe 1", "模型 ü", "0.8 [0.7, 0.9]", "a_b*c"):
        assert for_terminal(text) == for_csv(text) == for_markdown(text) == for_html(text) == text
    for cell in ("-0.5", "+3", "-inf", "never", -1, 2.5, ""):
        assert for_csv(cell) == cell
    assert lines_for_terminal("a\nb\x1b") == "a\nb\\x1b"


@each_row("name", HOSTILE)
def test_a_table_on_every_medium(name: str, tmp_path: Path) -> None:
    table = ReportTable(["run", name], frozenset({"run", name}), [[name, name]], [[name], [name], ["-1"]], f"x\n{name}")
    out = io.StringIO()
    table.print(Console(file=out, width=200, force_terminal=True, color_system=None))
    assert is_calm(out.getvalue().replace("\n", ""))
    assert "[bold red]" in out.getvalue() or "[bold red]" not in name
    table.write(tmp_path / "table")
    with (tmp_path / "table.csv").open(newline="") as file:
        *texts, number = csv.reader(file)
    assert number == ["-1"]
    assert texts == [[for_csv(name)]] * 2
    for suffix in ("csv", "md", "tex"):
        assert is_calm((tmp_path / f"table.{suffix}").read_text().replace("\n", ""))
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", lines[2])) == 3
    assert not re.search("<[a-z]", "\n".join(lines))


@each_row("text", HOSTILE)
def test_what_another_process_says(text: str) -> None:
    assert is_calm(printable(text, PRINTED_LIMIT))


def test_counts_are_written_as_people_read_them() -> None:
    assert [counted(count, "step") for count in (0, 1, 2, 100_000)] == ["0 steps", "1 step", "2 steps", "100,000 steps"]
    assert [plain_number(value) for value in (0.25, 16_000, 1e6, math.inf, 1e20)] == [
        "0.25",
        "16000",
        "1,000,000",
        "inf",
        "1e+20",
    ]
