"""Run the command `dsgd-reproduce` of a checkout, whose code is outside of the package, in `studies/`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import dsgd
from dsgd.host.stop import EXIT_CONFIG

ELSEWHERE = (
    "dsgd-reproduce must be run from a clone of the repository, which has the studies in studies/, got the package"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line by `studies.cli.reproduce`; returns its exit status."""
    checkout = Path(dsgd.__file__).parents[1]
    if not (checkout / "studies" / "cli" / "reproduce.py").is_file():
        print(f"{ELSEWHERE} {Path(dsgd.__file__).parent}", file=sys.stderr)
        return EXIT_CONFIG
    sys.path.append(str(checkout))
    return importlib.import_module("studies.cli.reproduce").main(argv)
