"""Every command says which version of dsgd it is."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(("command", "path"), PROJECT["scripts"].items())
def test_every_command_says_which_version_of_dsgd_it_is(
    command: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module, _, name = path.partition(":")
    main: Callable[[list[str]], int] = getattr(import_module(module), name)
    try:
        status: object = main(["--version"])
    except SystemExit as end:
        status = end.code
    assert status == 0
    assert capsys.readouterr().out == f"dsgd {PROJECT['version']}\n", command


def test_an_installation_has_every_command() -> None:
    """`pip install .` makes them from these: whoever installs finds all four."""
    points = entry_points(group="console_scripts")
    assert {point.name: point.value for point in points if point.value.startswith("dsgd.")} == PROJECT["scripts"]
