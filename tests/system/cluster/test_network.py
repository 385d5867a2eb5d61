"""The network of namespaces itself: what other tests rely on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.network import Network, burst_bytes

pytestmark = pytest.mark.long

PATIENCE_S = 60
Make = Callable[..., Network]

# Host 2 connects to host 1; one sends so many bytes, then the other. Each prints the bytes per second that it received.
STREAM = """
import os, socket, sys, time
size = int(sys.argv[1])
if os.environ["HOST"] == "1":
    server = socket.create_server(("h1", 7000))
    print("listens", flush=True)
    stream, _ = server.accept()
else:
    stream = socket.create_connection(("h1", 7000), timeout=300)
    stream.sendall(bytes(size))
left = size - len(stream.recv(2**20))
timed, begin = left, time.monotonic()
while left:
    left -= len(stream.recv(2**20))
print(timed / (time.monotonic() - begin))
if os.environ["HOST"] == "1":
    stream.sendall(bytes(size))
"""

# Host 1 answers each byte of host 2, which prints the shortest of many round trips.
ROUND_TRIP = """
import os, socket, sys, time
if os.environ["HOST"] == "1":
    server = socket.create_server(("h1", 7000))
    print("listens", flush=True)
    stream, _ = server.accept()
    while got := stream.recv(1):
        stream.sendall(got)
else:
    stream = socket.create_connection(("h1", 7000), timeout=60)
    times = []
    for _ in range(100):
        begin = time.monotonic()
        stream.sendall(b"x")
        stream.recv(1)
        times.append(time.monotonic() - begin)
    print(min(times))
"""

# Sends a byte to host 1 for each line of input, prints whether it came back soon.
ASK = """
import socket, sys
stream = socket.create_connection(("h1", 7000), timeout=300)
for line in sys.stdin:
    stream.settimeout(float(line))
    stream.sendall(b"x")
    try:
        print(len(stream.recv(100)), flush=True)
    except TimeoutError:
        print("silence", flush=True)
"""

ECHO = """
import socket
server = socket.create_server(("h1", 7000))
print("listens", flush=True)
stream, _ = server.accept()
while got := stream.recv(100):
    stream.sendall(got)
"""

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


def python(text: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-c", text, *arguments]


def listening(network: Network, text: str, *arguments: str) -> subprocess.Popen[str]:
    """A program on host 1 that has said that it listens."""
    server = network.popen(1, *python(text, *arguments), stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "listens\n"
    return server


def members(namespaces: list[int]) -> list[int]:
    """Processes in these network namespaces."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "ns" / "net").stat().st_ino in namespaces:
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def test_hosts_know_themselves_and_each_other_by_name(network: Make) -> None:
    made = network(hosts=3, rate="100mbit")
    ask = 'import socket; print(socket.gethostname(), *(socket.gethostbyname(f"h{i}") for i in (1, 2, 3)))'
    for host in made.hosts:
        said = made.run(host, *python(ask), capture_output=True, text=True, check=True).stdout
        assert said == f"h{host} 10.78.0.1 10.78.0.2 10.78.0.3\n"
        assert made.address(host) == f"10.78.0.{host}"


def test_a_command_on_a_host_has_its_folder_its_number_and_its_own_process_id(network: Make, tmp_path: Path) -> None:
    made = network(hosts=2, rate="100mbit")
    ask = "import os; print(os.getcwd(), os.getpid(), os.environ['HOST'], os.environ['HOSTS'])"
    process = made.popen(2, *python(ask), cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.communicate(timeout=PATIENCE_S)[0] == f"{tmp_path} {process.pid} 2 2\n"


def test_hosts_have_no_way_out(network: Make) -> None:
    made = network(hosts=1, rate="100mbit")
    said = made.run(1, "ip", "-4", "route", capture_output=True, text=True, check=True).stdout
    assert said.split() == ["10.78.0.0/24", "dev", "eth0", "proto", "kernel", "scope", "link", "src", "10.78.0.1"]


@pytest.mark.parametrize(("rate", "relinked"), [("100mbit", None), ("1gbit", "50mbit")])
def test_a_stream_gets_the_rate_in_each_direction(network: Make, rate: str, relinked: str | None) -> None:
    """A property of tbf, not of a program's speed: headers take 4 to 5 %, and of 0.4 s the burst and the start of the
    stream change little."""
    made = network(hosts=2, rate=rate)
    if relinked is not None:
        made.link(2, relinked)
    nominal = {"100mbit": 12.5e6, "50mbit": 6.25e6}[relinked or rate]
    for seconds in (0.4, 1.2, 3.6, 10.8):  # the longer, the less a pause of a busy machine changes
        size = str(int(nominal * seconds))
        server = listening(made, STREAM, size)
        client = made.run(2, *python(STREAM, size), capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        rates = [float(server.communicate(timeout=PATIENCE_S)[0]), float(client.stdout)]
        if all(0.9 * nominal <= measured <= nominal for measured in rates):
            return
    raise AssertionError(f"{rates} bytes per second, of {nominal}")


def test_a_latency_is_that_of_one_way_and_leaves_the_rate(network: Make) -> None:
    made = network(hosts=3, rate="100mbit", latency_s=0.02)
    server = listening(made, ROUND_TRIP)
    client = made.run(3, *python(ROUND_TRIP), capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    server.communicate(timeout=PATIENCE_S)
    assert 0.04 <= float(client.stdout) < 0.06
    size = str(int(12.5e6 * 4))
    server = listening(made, STREAM, size)
    client = made.run(2, *python(STREAM, size), capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    rates = [float(server.communicate(timeout=PATIENCE_S)[0]), float(client.stdout)]
    assert all(0.5 * 12.5e6 <= measured <= 12.5e6 for measured in rates)


@pytest.mark.parametrize("latency_s", [0.0, 0.01])
def test_a_link_that_is_down_passes_nothing_until_it_is_up(network: Make, latency_s: float) -> None:
    made = network(hosts=2, rate="100mbit", latency_s=latency_s)
    server = listening(made, ECHO)
    pipe = subprocess.PIPE
    client = made.popen(2, *python(ASK), stdin=pipe, stdout=pipe, text=True, bufsize=1)
    assert client.stdin is not None
    assert client.stdout is not None

    def ask(timeout_s: float) -> str:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(f"{timeout_s}\n")
        return client.stdout.readline()

    assert ask(PATIENCE_S) == "1\n"
    made.link(2, "down")
    assert ask(0.3) == "silence\n"
    made.link(2, "up")
    assert ask(PATIENCE_S) in ("1\n", "2\n"), "the stream goes on, with what was lost sent again"
    client.communicate(timeout=PATIENCE_S)
    server.communicate(timeout=PATIENCE_S)


def test_networks_side_by_side_do_not_know_of_each_other(network: Make) -> None:
    answers = []
    for name in ("first", "second"):
        made = network(hosts=2, rate="100mbit")
        serve = "import socket; s = socket.create_server(('h1', 7000)); print('listens', flush=True); "
        server = listening(made, serve + f"c, _ = s.accept(); c.sendall(b'{name}')")
        answers.append((made, server))
    for (made, server), name in zip(answers, ("first", "second"), strict=True):
        ask = "import socket; print(socket.create_connection(('h1', 7000), 60).recv(99).decode())"
        said = made.run(2, *python(ask), capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
        assert said == f"{name}\n"
        server.communicate(timeout=PATIENCE_S)


def test_nothing_is_left_after_close(network: Make) -> None:
    before = {interface.name for interface in Path("/sys/class/net").iterdir()}
    made = network(hosts=2, rate="100mbit")
    warden = made._warden.pid
    namespaces = [os.stat(f"/proc/{warden}/fd/{kinds['net']}").st_ino for kinds in made._descriptors]
    sleeper = made.popen(1, "sh", "-c", "setsid -f sleep 1000; echo; exec sleep 1000", stdout=subprocess.PIPE)
    assert sleeper.stdout is not None
    sleeper.stdout.readline()
    assert len(members(namespaces)) >= 2
    made.close()
    assert members(namespaces) == []
    sleeper.communicate(timeout=PATIENCE_S)
    assert sleeper.returncode == -signal.SIGKILL
    assert not Path(f"/proc/{warden}").exists()
    after = {interface.name for interface in Path("/sys/class/net").iterdir()}
    assert not {name for name in after - before if name in ("br0", "eth0", "v1", "v2")}
    made.close()


def test_nothing_is_left_after_its_maker_was_killed(network: Make) -> None:
    """Even while a fork of the maker lives on."""
    root = Path(__file__).parents[3]
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, cwd=root)
    assert owner.stdout is not None
    warden, namespaces, fork = json.loads(owner.stdout.readline())
    try:
        wait_until(lambda: len(members(namespaces)) >= 4)
        owner.kill()
        owner.wait(PATIENCE_S)
        wait_until(lambda: not members(namespaces))
        status = Path(f"/proc/{warden}/status")  # its new parent may be slow to reap it
        wait_until(lambda: not status.exists() or "State:\tZ" in status.read_text())
    finally:
        os.kill(fork, signal.SIGKILL)
        owner.stdout.close()


def test_the_command_runs_on_every_host_and_reports_failure(network: Make) -> None:
    command = [sys.executable, "-m", "tests.support.network", "--hosts", "2", "--rate", "100mbit", "--"]
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [*command, "sh", "-c", "hostname; exit $((HOST + 1))"], capture_output=True, text=True, timeout=300, cwd=root
    )
    assert sorted(done.stdout.split()) == ["h1", "h2"]
    assert done.returncode == 3


@pytest.mark.parametrize(("rate", "expected"), [("100mbit", 2**17), ("1.5gbit", 187_500), ("10gbit", 1_250_000)])
def test_a_burst_is_a_millisecond_and_never_less_than_the_largest_packets(rate: str, expected: int) -> None:
    assert burst_bytes(rate) == expected


@pytest.mark.parametrize("rate", ["", "100", "fast", "-1mbit", "100mbit; reboot"])
def test_what_is_no_rate_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match=r"^a link must be down, up or a rate like 100mbit, got "):
        burst_bytes(rate)


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
