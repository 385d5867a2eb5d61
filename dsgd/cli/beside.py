"""Prepare what a command makes in a process of its own, while this one imports torch: each takes most of a second."""

from __future__ import annotations

import pickle
import signal
import sys
from collections.abc import Callable
from typing import TypeVar

from dsgd.cli.arguments import one_line
from dsgd.host.signals import Interrupted
from dsgd.host.stop import EXIT_INTERRUPTED
from dsgd.runner.children import Children

EXIT_CONFIG = 2
TEXT = "latin-1"  # holds any bytes

T = TypeVar("T")


def beside(prepare: Callable[[], T], meanwhile: Callable[[], None], program: str = "") -> T:
    """Return what `prepare` does, which runs in a process of its own. meanwhile: called in this one. program: the word
    before an error.

    Raises KeyboardInterrupt after a signal, and SystemExit where the other process has found an error: it has printed
    that at once."""
    with Children() as children:
        children.start(lambda: _outcome(prepare, program))
        meanwhile()
        _, child = children.wait()
    if child.signals or child.status == EXIT_INTERRUPTED:
        raise Interrupted
    if child.status < 0:
        sys.exit(f"the check of the command line was killed by {signal.Signals(-child.status).name}")
    if child.status > 0:
        sys.exit(child.status)
    result: T = pickle.loads(child.text.encode(TEXT))
    return result


def _outcome(prepare: Callable[[], object], program: str) -> str:
    """Return what `prepare` does, pickled. Raises SystemExit after a line on an error."""
    try:
        return pickle.dumps(prepare()).decode(TEXT)
    except ValueError as error:
        print(f"{program}: {one_line(error)}" if program else one_line(error), file=sys.stderr)
        sys.exit(EXIT_CONFIG)
