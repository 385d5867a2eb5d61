"""Parse the options of the commands that do not go through Hydra, and say which version they are of."""

from __future__ import annotations

import argparse
from importlib.metadata import version
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser that raises ValueError, of one line, for wrong arguments; it does not print its usage or exit."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def version_line() -> str:
    """Return what every command prints for --version."""
    return f"dsgd {version('dsgd')}"
