"""The parser of the commands that have options of their own."""

from __future__ import annotations

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """Wrong arguments raise ValueError: one line, like every other error, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)
