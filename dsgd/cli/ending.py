"""End a command that makes runs: with its exit status and one line that says why."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from dsgd.cli.arguments import one_line
from dsgd.cli.rounds import Unfinished
from dsgd.host.signals import Interruption
from dsgd.host.stop import EXIT_CONFIG, EXIT_INTERRUPTED, STOP_SIGNALS
from dsgd.safe_text import for_terminal

EXIT_UNFINISHED = 1


class Usage(Exception):
    """A command has no arguments: lines with examples, and one line that names the missing argument."""


def ended(program: str, work: Callable[[Interruption], None]) -> int:
    """Do the work of a command; returns 0, 1 if runs failed or are still to come, 2 after one line on stderr, 130 after
    a signal, for which the work looks where it can end."""
    interruption = Interruption()
    handlers = {number: signal.signal(number, interruption) for number in STOP_SIGNALS}
    try:
        work(interruption)
        return 0
    except Unfinished as line:
        print(f"{program}: {one_line(line)}", file=sys.stderr)
        return EXIT_UNFINISHED
    except Usage as lines:
        print(lines, file=sys.stderr)
        return EXIT_CONFIG
    except ValueError as error:
        print(f"{program}: {one_line(error)}", file=sys.stderr)
        return EXIT_CONFIG
    except OSError as error:  # the disk is full, a folder has gone
        line = for_terminal(f"{error.strerror}: {error.filename}; repeat the command to resume")
        print(f"{program}: {line}", file=sys.stderr)
        return EXIT_UNFINISHED
    except KeyboardInterrupt:
        print(f"{program}: interrupted; repeat the command to resume", file=sys.stderr)
        return EXIT_INTERRUPTED
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
