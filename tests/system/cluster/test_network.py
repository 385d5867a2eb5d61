"""The network of namespaces itself: what other tests rely on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.network import Network, members
from tests.support.planes import until

PATIENCE_S = 60
Make = Callable[..., Network]

# Makes a network with processes on its hosts, one of them in a session of its own, and says what is to vanish.
OWNER = """
import json, os, sys, time
from tests.support.network import Network
network = Network(hosts=2, rate="100mbit")
network.popen(1, "sleep", "1000")
network.popen(2, "sh", "-c", "setsid -f sleep 1000; sleep 1000")
fork = os.fork()
if fork == 0:  # has all the maker's open files, and outlives it
    time.sleep(1000)
    os._exit(0)
opened = [f"/proc/{network._warden.pid}/fd/{kinds['net']}" for kinds in network._descriptors]
print(json.dumps([network._warden.pid, [os.stat(path).st_ino for path in opened], fork]), flush=True)
time.sleep(1000)
"""


def test_hosts_have_no_way_out(network: Make) -> None:
    made = network(hosts=1, rate="100mbit")
    said = made.run(1, "ip", "-4", "route", capture_output=True, text=True, check=True).stdout
    assert said.split() == ["10.78.0.0/24", "dev", "eth0", "proto", "kernel", "scope", "link", "src", "10.78.0.1"]


def test_nothing_is_left_after_its_maker_was_killed(network: Make) -> None:
    """Even while a fork of the maker lives on."""
    root = Path(__file__).parents[3]
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, cwd=root)
    assert owner.stdout is not None
    warden, namespaces, fork = json.loads(owner.stdout.readline())
    try:
        until(lambda: len(members(set(namespaces))) >= 4)
        owner.kill()
        owner.wait(PATIENCE_S)
        until(lambda: not members(set(namespaces)))
        status = Path(f"/proc/{warden}/status")  # its new parent may be slow to reap it
        until(lambda: not status.exists() or "State:\tZ" in status.read_text())
    finally:
        os.kill(fork, signal.SIGKILL)
        owner.stdout.close()


@pytest.mark.parametrize(("required", "outcome"), [("", "1 skipped"), ("slurm,network", "1 error")])
def test_without_its_tools_tests_are_skipped_and_fail_where_it_is_required(
    required: str, outcome: str, tmp_path: Path
) -> None:
    """pytest itself, on one test of this file, with no program in its PATH."""
    one = f"{__file__}::test_hosts_have_no_way_out"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", one],
        env={"PATH": str(tmp_path), "DSGD_REQUIRE": required},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert outcome in done.stdout, done.stdout
    assert "needs the tools ip, tc, nsenter, env" in done.stdout or "needs root" in done.stdout
