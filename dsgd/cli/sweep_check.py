"""Check a sweep in a process of its own, which imports Hydra for it, while this one imports torch.

Each takes most of a second.
"""

from __future__ import annotations

import pickle
import signal
import sys
from collections.abc import Callable, Sequence

from dsgd.cli.arguments import one_line, parsed
from dsgd.cli.checked import Checked
from dsgd.host.fork import EXIT_INTERRUPTED
from dsgd.host.resources import cores
from dsgd.host.signals import Interruption
from dsgd.run.children import Children

EXIT_CONFIG = 2
TEXT = "latin-1"  # holds any bytes


def has_jobs_at_a_time(arguments: Sequence[str]) -> bool:
    """Return whether a command line asks for a sweep that uses several cores. Raises ConfigError."""
    options = parsed(arguments)
    instead = options.help, options.hydra_help, options.shell_completion, options.experimental_rerun
    asked = options.multirun and not any((*instead, options.cfg, options.info))
    return asked and "sweep.jobs=1" not in options.overrides and cores() > 1


def check_beside(arguments: Sequence[str], interruption: Interruption, meanwhile: Callable[[], None]) -> Checked:
    """Return what `check` does, which runs in a process of its own. meanwhile: called in this one.

    Raises KeyboardInterrupt after a signal, and SystemExit where the other process has found an error: it has printed
    that at once."""
    with Children() as children:
        children.start(lambda: _outcome(arguments, interruption))
        meanwhile()
        _, told = children.wait()
    if told.signals or told.status == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if told.status < 0:
        sys.exit(f"the check of the sweep was killed by {signal.Signals(-told.status).name}")
    if told.status > 0:
        sys.exit(told.status)
    return pickle.loads(told.text.encode(TEXT))


def _outcome(arguments: Sequence[str], interruption: Interruption) -> str:
    """Return what `check` returns, pickled. Raises SystemExit after a line on an error."""
    from dsgd.cli.check import check  # imports Hydra, which the other process does without

    try:
        return pickle.dumps(check(arguments, interruption)).decode(TEXT)
    except ValueError as error:
        print(one_line(error), file=sys.stderr)
        sys.exit(EXIT_CONFIG)
