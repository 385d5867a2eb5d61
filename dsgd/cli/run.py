"""dsgd-run: check the configuration, run the experiment, keep its record.

Imports neither Hydra nor torch before the command line has been looked at: a sweep has each imported by a process of
its own.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence

from dsgd.cli.arguments import has_jobs_at_a_time, one_line, opened, together, version_line
from dsgd.cli.beside import EXIT_CONFIG, beside
from dsgd.cli.checked import Checked
from dsgd.engines.early_imports import import_engines
from dsgd.host.launcher import legible
from dsgd.host.signals import Interruption, ignore
from dsgd.host.stop import EXIT_INTERRUPTED, STOP_SIGNALS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 (also for a diverged run, which is a result), 1 for a run that failed, 2 for a bad
    configuration, 130 where one of STOP_SIGNALS has ended it early.

    Raises SystemExit where Hydra ends the process itself: with 0 after --help, with 1 after an exception."""
    as_called, owns_process = sys.argv, argv is None  # owns_process: this process is the command's
    arguments = opened(as_called[1:] if argv is None else argv)
    interruption = Interruption()
    handlers = {number: signal.signal(number, interruption) for number in STOP_SIGNALS}
    try:
        return _run(arguments, interruption, owns_process)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    finally:
        interruption.end()
        sys.argv = as_called
        for number, handler in handlers.items():
            if owns_process:  # the process ends now: signals must not change its exit status
                ignore(number)
            else:
                signal.signal(number, handler)


def _run(arguments: list[str], interruption: Interruption, owns_process: bool) -> int:
    """Check a command line and start what it asks for. owns_process: in a process of the command's. Returns the exit
    status."""
    if "--version" in arguments:  # Hydra would say which version Hydra is
        print(version_line())
        return 0
    try:
        arguments = together(arguments)
        if owns_process and has_jobs_at_a_time(arguments):
            checked = beside(lambda: _check(arguments, interruption), _import_sweep)
        else:
            checked = _check(arguments, interruption)
        if checked is None:
            return 0
        from dsgd.cli.jobs import run_jobs

        return run_jobs(checked, arguments, interruption)
    except ValueError as error:
        print(one_line(error), file=sys.stderr)
        return EXIT_CONFIG


def _import_sweep() -> None:
    """Import what the jobs of a sweep need."""
    import_engines(["sim"])
    importlib.import_module("dsgd.cli.jobs")


def _check(arguments: Sequence[str], interruption: Interruption) -> Checked | None:
    """Return what `check` does; None, after a line, if there is nothing to do."""
    from dsgd.cli.check import check
    from dsgd.runner.resume import NothingToDo

    try:
        return check(arguments, interruption)
    except NothingToDo as line:
        interruption.end()
        where = legible(os.environ)
        if where is None or where.rank == 0:
            print(line, file=sys.stderr)
        return None


if __name__ == "__main__":
    sys.exit(main())
