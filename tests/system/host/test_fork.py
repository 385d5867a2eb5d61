"""Forked processes."""

from __future__ import annotations

import os
import subprocess
import sys

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
    command = [sys.executable, "-c", PROGRAM]
    variables = {**os.environ, "OMP_NUM_THREADS": "2"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=variables)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["0 1000000.0"] * 2
