"""What the environment of a command is made for, a notebook or another locale, changes nothing of what it makes."""

from __future__ import annotations

import ast
from pathlib import Path

import dsgd
from tests.support.command import shell

COMPARE = (
    "dsgd-compare algo=sync,gossip experiment=quadratic nodes=2 budget.steps=20 cluster.gradient_s=0.01 target.loss=1 "
    "compare.tune={} compare.seeds=2"
)
ASCII = {
    "LC_ALL": "C",
    "PYTHONCOERCECLOCALE": "0",
    "PYTHONUTF8": "0",
}  # neither a dash nor a letter é
INLINE = "module://matplotlib_inline.backend_inline"
OPENING = ("open", "TemporaryFile", "NamedTemporaryFile", "fdopen")


def test_neither_a_locale_nor_what_draws_elsewhere_changes_a_file(tmp_path: Path) -> None:
    """Files are in UTF-8 in every locale, and figures are files in a notebook."""
    for name, changes in (("ascii", ASCII), ("utf8", {"MPLBACKEND": INLINE})):
        folder = tmp_path / name
        folder.mkdir()
        result = shell(f"{COMPARE} --html page.html", folder, **changes)
        assert result.returncode == 0, result.stderr
        assert (folder / "comparison" / "contest.png").stat().st_size > 0
    for backend in (INLINE, "TkAgg", "nonsense"):
        result = shell("dsgd-plot ascii/comparison --only loss_time", tmp_path, MPLBACKEND=backend)
        assert result.returncode == 0, result.stderr
    result = shell("dsgd-reproduce --help", tmp_path, MPLBACKEND=INLINE)
    assert result.returncode == 0, result.stderr
    for file in ("comparison/verdict.txt", "comparison/contest.md", "comparison/contest.tex", "comparison/contest.svg"):
        assert (tmp_path / "ascii" / file).read_bytes() == (tmp_path / "utf8" / file).read_bytes()
    assert (tmp_path / "ascii" / "page.html").read_text(encoding="utf-8")


def test_what_a_terminal_cannot_show_is_replaced(tmp_path: Path) -> None:
    code = "def Net(): raise RuntimeError('caf\\u00e9 \\u2013 closed')"
    (tmp_path / "own.py").write_text(code, encoding="utf-8")
    line = "dsgd-run model=import model.target=own.Net nodes=2"
    result = shell(line, tmp_path, PYTHONPATH=str(tmp_path), **ASCII)
    assert (result.returncode, result.stderr) == (2, "model.target=own.Net fails: RuntimeError: caf? ? closed\n")


def test_every_text_file_is_opened_with_an_encoding() -> None:
    """By its name a call may be of another function: those have no text either, or take no mode."""
    package = Path(dsgd.__file__).parent
    without = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _opens_text(node)
    ]
    assert without == []


def _opens_text(call: ast.Call) -> bool:
    """Return whether a call opens a text in the encoding of the locale."""
    named = {keyword.arg for keyword in call.keywords}
    if "encoding" in named:
        return False
    if isinstance(call.func, ast.Name):
        return call.func.id == "open" and not _is_binary(call)
    if not isinstance(call.func, ast.Attribute):
        return False
    method, owner = call.func.attr, ast.unparse(call.func.value)
    if method in ("read_text", "write_text") or "text" in named or "universal_newlines" in named:
        return True
    if owner in ("os", "gzip", "tarfile", "Image") and method == "open":
        return False
    return method in OPENING and not _is_binary(call)


def _is_binary(call: ast.Call) -> bool:
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
    modes = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    by_default = not modes and ("Temporary" in method or (method == "open" and bool(given)))  # of something else
    return by_default or any("b" in mode for mode in modes)
