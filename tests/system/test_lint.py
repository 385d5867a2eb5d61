"""What `make lint` looks at: every Python file that git tracks, whatever its folder is called."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tracked() -> set[str]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.splitlines() if (ROOT / name).exists()}


def test_every_file_is_linted() -> None:
    command = [sys.executable, "-m", "ruff", "check", "--show-files", "."]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert tracked() <= {str(Path(name).relative_to(ROOT)) for name in shown}


def test_every_file_is_type_checked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]
    assert "exclude" not in settings
    assert {Path(name).parts[0] for name in tracked()} <= set(settings["include"])
