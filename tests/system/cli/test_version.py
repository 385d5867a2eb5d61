"""Every command says which version of dsgd it is."""

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
