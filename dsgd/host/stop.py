"""The signals that end a command, and its exit status. Imports almost nothing: a command needs it first."""

from __future__ import annotations

import signal

EXIT_FAILED, EXIT_CONFIG, EXIT_INTERRUPTED = 1, 2, 130

# Each asks for a checkpoint and the end: Ctrl-C, kill, the signal of SLURM's option before a time limit, and the end of
# the terminal, unless this process was started to outlive it (nohup).
STOP_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    *([] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]),
)
