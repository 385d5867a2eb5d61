"""The commit that a record names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from dsgd.record.writer import commit


def test_a_commit_has_a_plus_where_what_a_run_depends_on_has_changed(tmp_path: Path) -> None:
    """Not where results have been written, as dsgd-reproduce does between two runs."""
    assert commit(tmp_path) is None
    for name in ("dsgd/a.py", "conf/a.yaml", "results/a.csv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("1")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a"]):
        subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True)
    head = commit(tmp_path)
    assert head is not None
    assert re.fullmatch("[0-9a-f]{40}", head)
    (tmp_path / "results/a.csv").write_text("2")
    (tmp_path / "dsgd/new.py").touch()
    assert commit(tmp_path) == head
    (tmp_path / "conf/a.yaml").write_text("2")
    assert commit(tmp_path) == f"{head}+"
