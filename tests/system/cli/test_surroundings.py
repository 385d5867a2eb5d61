"""What the environment of a command is made for, a notebook or another locale, changes nothing of what it makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.command import shell

COMPARE = (
    "dsgd-compare algo=sync,gossip experiment=quadratic nodes=2 budget.steps=20 cluster.gradient_s=0.01 target.loss=1 "
    "compare.tune={} compare.seeds=2"
)
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}  # neither a dash nor a letter é
INLINE = "module://matplotlib_inline.backend_inline"
ROOT = Path(__file__).parents[3]


def test_neither_a_locale_nor_what_draws_elsewhere_changes_a_file(tmp_path: Path) -> None:
    """Files are in UTF-8 in every locale, and figures are files in a notebook."""
    for name, changes in (("ascii", ASCII), ("utf8", {"MPLBACKEND": INLINE})):
        folder = tmp_path / name
        folder.mkdir()
        result = shell(f"{COMPARE} --html page.html", folder, **changes)
        assert result.returncode == 0, result.stderr
        assert (folder / "comparison" / "contest.png").stat().st_size > 0
    result = shell("dsgd-plot ascii/comparison --only loss_time", tmp_path, MPLBACKEND="nonsense")
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
    rule = ["--preview", "--select=PLW1514", "--isolated", "--no-cache"]
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", *rule, "dsgd", "studies"], cwd=ROOT, text=True, capture_output=True
    )
    assert checked.returncode == 0, checked.stdout
