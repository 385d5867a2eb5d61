"""The installed commands: a signal during the import of their modules ends them silently.

Imports as little as possible before that."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial

from dsgd.host.stop import EXIT_INTERRUPTED, STOP_SIGNALS

# the module of each command, whose `main` runs a command line
MODULES = {
    "run": "dsgd.cli.run",
    "plot": "dsgd.cli.plot",
    "compare": "dsgd.comparison.command",
    "sweep": "dsgd.cli.sweep",
    "reproduce": "dsgd.cli.studies",
    "calibrate": "dsgd.cli.calibrate",
    "replay": "dsgd.replay.replay_command",
    "certify": "dsgd.cli.certify",
}


def _call(command: str, handles_signals: bool = False) -> int:
    """Import the module of a command, of MODULES, and call its `main`; returns the exit status.

    handles_signals: `main` sets signal handlers; otherwise the previous ones are restored for it."""
    before = {number: signal.signal(number, _end) for number in STOP_SIGNALS}
    import atexit
    import importlib

    from dsgd.host.signals import ignore
    from dsgd.host.terminal import keep_streams

    keep_streams()
    os.environ["MPLBACKEND"] = "Agg"  # figures go into files; a notebook's backend may not be installed here
    ended: list[int] = []
    atexit.register(_end_at_once, ended)  # the first to be registered is the last to be called
    main = importlib.import_module(MODULES[command]).main
    try:
        if not handles_signals:
            for number, handler in before.items():
                signal.signal(number, handler)
        ended.append(main())
    except KeyboardInterrupt:
        ended.append(EXIT_INTERRUPTED)
    finally:
        for number in STOP_SIGNALS:  # the process ends now: they must not change its exit status
            ignore(number)
    return ended[0]


def _end_at_once(ended: list[int]) -> None:
    """End this process with its status, if it has one. Python would delete every object first, which takes a tenth of a
    second once torch is imported."""
    if not ended:  # it ends with an exception
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended[0])


def _end(number: int, frame: object) -> None:
    os._exit(EXIT_INTERRUPTED)  # an exception could be lost, or printed, wherever modules are imported


run = partial(_call, "run", handles_signals=True)
plot = partial(_call, "plot")
compare = partial(_call, "compare", handles_signals=True)
sweep = partial(_call, "sweep")
reproduce = partial(_call, "reproduce", handles_signals=True)
calibrate = partial(_call, "calibrate")
replay = partial(_call, "replay")
certify = partial(_call, "certify")
