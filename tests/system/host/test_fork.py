"""Forked processes, and a signal that is ignored as it comes."""

from __future__ import annotations

import subprocess
import sys

from tests.support.command import in_python

PROGRAM = """
import os, signal
import torch
from dsgd.host.fork import fork

torch.set_num_threads(2)
whole = torch.ones(1000, 1000)
whole.exp().sum()  # by both threads, which the forked process does not have


def again():
    torch.set_num_threads(2)
    return int(float(whole.sum()) != 1e6)

def prepare():
    signal.alarm(20)  # a process that waits for ever

for _ in range(2):  # the threads come back here, and go again
    _, status = os.waitpid(fork(prepare, again), 0)
    print(os.waitstatus_to_exitcode(status), float(whole.sum()))
"""


def test_a_forked_process_computes_in_parallel_after_its_parent_did() -> None:
    assert in_python(PROGRAM, OMP_NUM_THREADS="2").splitlines() == ["0 1000000.0"] * 2


IGNORED_AS_IT_COMES = """
import os, signal, time
from dsgd.host.signals import ignore

this, caught = os.getpid(), []
ignore(signal.SIGUSR1)
if (sender := os.fork()) == 0:
    while os.getppid() == this:
        os.kill(this, signal.SIGUSR1)
    os._exit(0)
deadline = time.monotonic() + 0.5
while time.monotonic() < deadline or not caught:
    signal.signal(signal.SIGUSR1, lambda number, frame: caught.append(number))
    ignore(signal.SIGUSR1)
os.kill(sender, signal.SIGKILL)
os.waitpid(sender, 0)
"""


def test_a_signal_ignored_as_it_comes_says_nothing() -> None:
    """Python prints "ignored due to race condition" where one came between its last look and the exchange. In a process
    of one thread: the system may have handed a signal to another thread, as pytest-xdist has, that runs later."""
    done = subprocess.run([sys.executable, "-c", IGNORED_AS_IT_COMES], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
