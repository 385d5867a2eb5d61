"""Processes that a command forks for its runs."""

from __future__ import annotations

import signal
import subprocess
import sys

SCRIPT = """
import os, signal, sys
from dsgd.run.children import Children

def result():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as a run that writes its record before it ends
    os.kill(os.getppid(), signal.SIGKILL)
    sys.stdin.read(1)
    return "done"

with Children() as children:
    children.start(result)
    children.wait()
"""


def test_a_child_whose_parent_was_killed_leaves_no_traceback() -> None:
    """It has nobody to hand its result to. Found by the fault campaign, on two comparisons in one folder."""
    pipe = subprocess.PIPE
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert parent.wait(timeout=100) == -signal.SIGKILL
    assert parent.communicate("x")[1] == ""
