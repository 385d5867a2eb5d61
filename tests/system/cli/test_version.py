"""Every command is installed, says which version of dsgd it is, and dsgd-run is completed as it is typed."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.support.command import shell

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("command", PROJECT["scripts"])
def test_every_command_says_which_version_of_dsgd_it_is(command: str, tmp_path: Path) -> None:
    result = shell(f"{command} --version", tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"dsgd {PROJECT['version']}\n", "")


def test_an_installation_has_every_command() -> None:
    """`pip install .` makes them from these: whoever installs finds them all."""
    points = entry_points(group="console_scripts")
    assert {point.name: point.value for point in points if point.value.startswith("dsgd.")} == PROJECT["scripts"]


def test_tab_completion(tmp_path: Path) -> None:
    """Hydra's completion for bash: installs a function for this command, and answers its questions."""
    script = shell("dsgd-run -sc install=bash", tmp_path)
    assert script.returncode == 0
    assert "complete -o nospace -o default -F hydra_bash_completion dsgd-run" in script.stdout
    for typed, wanted in [("dsgd-run algo=go", {"algo=gossip"}), ("dsgd-run optimizer.n", {"optimizer.nesterov="})]:
        answer = shell("dsgd-run -sc query=bash", tmp_path, COMP_LINE=typed, COMP_POINT=str(len(typed)))
        assert set(answer.stdout.split()) == wanted
    assert list(tmp_path.iterdir()) == []
