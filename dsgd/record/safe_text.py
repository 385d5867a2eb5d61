"""Make texts safe for the medium that shows them, as names out of records, folders and messages may be a stranger's;
and write counts as people read them."""

from __future__ import annotations

import html
import re
from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of a formula in spreadsheets
_MARKDOWN = {"\\": r"\\", "|": r"\|", "`": r"\`", "<": "&lt;", "](": r"]\("}
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\`{}", '"': "''"}
_LATEX |= {"×": r"\(\times\)", "±": r"\(\pm\)", "µ": r"\(\mu\)", "–": "--"}
_LATEX |= {character: "\\" + character for character in "&%$#_{}"}


def for_terminal(text: str) -> str:
    """Return a text of one line, in which control characters, escape sequences, and marks of writing direction are
    escaped as in Python: `\\x1b[2J`."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _written(character) for character in text)


def lines_for_terminal(text: str) -> str:
    """Return a text of several lines, each of them as `for_terminal` does."""
    return "\n".join(map(for_terminal, text.split("\n")))


def calm(value: Any) -> Any:
    """Return plain values in which every text, a key too, is as `for_terminal` has it, and so can begin no line."""
    if isinstance(value, str):
        return for_terminal(value)
    if isinstance(value, dict):
        return {calm(key): calm(inner) for key, inner in value.items()}
    return [calm(inner) for inner in value] if isinstance(value, list) else value


def for_csv(cell: object) -> object:
    """Return a cell of a CSV file: a text that a spreadsheet would compute gets an apostrophe. Numbers stay."""
    if not isinstance(cell, str):
        return cell
    return for_terminal(f"'{cell}" if cell.startswith(FORMULA) and not _is_number(cell) else cell)


def for_markdown(text: str) -> str:
    """Return a text in a form that is safe in a cell of a table, without HTML, code or links."""
    for piece, escaped in _MARKDOWN.items():
        text = text.replace(piece, escaped)
    return for_terminal(text)


def from_markdown(text: str) -> str:
    """Return the text that `for_markdown` turned into this one."""
    for piece, escaped in reversed(_MARKDOWN.items()):
        text = text.replace(escaped, piece)
    return text


def for_html(text: str) -> str:
    """Return a text as content, or as the value of an attribute, of HTML."""
    return html.escape(for_terminal(text))


def for_latex(text: str) -> str:
    """Return a text that LaTeX prints literally, in any of its font encodings."""
    safe = "".join(_LATEX.get(character, character) for character in for_terminal(text).replace("--", "-\u200b-"))
    return re.sub(r"(?<![\w.])-(?=\d)", r"\\(-\\)", safe.replace("\u200b", "{}"))


def plain_number(value: float) -> str:
    """Return a number with six digits; whole ones of 100,000 and more without an exponent."""
    return f"{value:,.0f}" if 1e5 <= abs(value) < 1e15 and value == int(value) else f"{value:g}"


def counted(count: float, name: str) -> str:
    """Return `1 step`, `100,000 steps`."""
    return f"{plain_number(count)} {name}{'s' * (count != 1)}"


def _written(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
