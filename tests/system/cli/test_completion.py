"""Completion of what is typed."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import shell


def test_tab_completion(tmp_path: Path) -> None:
    """Hydra's completion for bash: installs a function for this command, and answers its questions."""
    script = shell("dsgd-run -sc install=bash", tmp_path)
    assert script.returncode == 0
    assert "complete -o nospace -o default -F hydra_bash_completion dsgd-run" in script.stdout
    for typed, wanted in [("dsgd-run algo=g", {"algo=gossip"}), ("dsgd-run optimizer.n", {"optimizer.nesterov="})]:
        answer = shell("dsgd-run -sc query=bash", tmp_path, COMP_LINE=typed, COMP_POINT=str(len(typed)))
        assert set(answer.stdout.split()) == wanted
    assert list(tmp_path.iterdir()) == []
