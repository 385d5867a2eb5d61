"""Several hosts on one machine, joined by links of a given rate: for Linux, as root. Nothing leaves the machine.

    with Network(hosts=4, rate="100mbit") as network:
        network.run(2, "hostname")

A host is a network, a UTS and a mount namespace: its own loopback, its own eth0 at 10.78.0.I, its own name hI, its own
/dev/shm, and an /etc/hosts with all hosts; files, users and process ids are the machine's. Each eth0 is one end of a
veth pair, the other end is a port of a bridge in a namespace of its own. Both ends are shaped with tbf, so the rate
holds in both directions; it counts bytes on the wire, about 5 % more than what a TCP stream carries. With a latency,
a process forwards the frames later (`benchmarks/delay_line.py`) in the place of the bridge, in packets of 60,000 bytes.

One process, the warden, holds all namespaces open. When the network is closed or its maker is gone, it kills whatever
still runs on the hosts, and the rest vanishes with it. Nothing is named or written outside, so networks do not know of
each other.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 20  # with the warden
NAMESPACES = {"net": 0x40000000, "uts": 0x04000000, "mnt": 0x00020000}  # their files in /proc, and CLONE_NEW...
BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
LONG = ("mtu", "60000")  # of links with a latency: their packets pass through a process
TOOLS = ("ip", "tc", "nsenter", "env")


class Unavailable(Exception):
    """This machine cannot make such a network: one line why."""


class Network:
    """Hosts 1 to `hosts`, made at once and gone after `close` or the end of this process, whatever ends it.

    rate: of every link, in both directions, like 100mbit or 1.5gbit. latency_s: of one way between two hosts. Raises
    Unavailable."""

    def __init__(self, hosts: int, rate: str, latency_s: float = 0.0) -> None:
        burst_bytes(rate)
        self.hosts = range(1, hosts + 1)
        self._warden = subprocess.Popen(
            [sys.executable, "-I", __file__, str(hosts), rate, str(latency_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which then closes the network
        )
        assert self._warden.stdout is not None
        line = self._warden.stdout.readline() if select.select([self._warden.stdout], [], [], PATIENCE_S)[0] else b""
        said: dict[str, Any] = json.loads(line) if line else {"error": f"nothing from its warden within {PATIENCE_S} s"}
        if "error" in said:
            self.close()
            raise Unavailable(said["error"])
        self._descriptors: list[dict[str, int]] = said["namespaces"]  # of the bridge, then of the hosts

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill what runs on the hosts and take the network away. May be called again."""
        if self._warden.returncode is not None:
            return
        try:
            self._warden.communicate(b".", PATIENCE_S)
        finally:
            self._warden.kill()  # does nothing after its end
            status = self._warden.wait()
        if status:
            raise RuntimeError(f"the warden of a network ended with {status}; processes of its hosts may be left")

    def address(self, host: int) -> str:
        return f"10.78.0.{host}"

    def argv(self, host: int, *command: str, cwd: str | os.PathLike[str] | None = None) -> list[str]:
        """The command line that runs a command on a host. It replaces itself: the process id is the command's."""
        there = ("env", "-C", os.path.abspath(cwd or "."), f"HOST={host}", f"HOSTS={len(self.hosts)}")
        return [*self._enter(host, *NAMESPACES), *there, *command]

    def run(self, host: int, *command: str, **options: Any) -> subprocess.CompletedProcess[Any]:
        """subprocess.run on a host; the namespaces are entered by nsenter, in the folder `cwd`."""
        return subprocess.run(self.argv(host, *command, cwd=options.pop("cwd", None)), **options)

    def popen(self, host: int, *command: str, **options: Any) -> subprocess.Popen[Any]:
        return subprocess.Popen(self.argv(host, *command, cwd=options.pop("cwd", None)), **options)

    def cut(self, host: int) -> None:
        """Cut the link of a host at the bridge: the host sees its cable pulled, and keeps its address and routes."""
        _do(*self._enter(0, "net"), "ip", "link", "set", f"v{host}", "down")

    def processes(self, host: int) -> dict[int, str]:
        """What runs on a host: names by process id."""
        return members({os.stat(f"/proc/{self._warden.pid}/fd/{self._descriptors[host]['net']}").st_ino})

    def _enter(self, index: int, *kinds: str) -> list[str]:
        files = {kind: f"/proc/{self._warden.pid}/fd/{self._descriptors[index][kind]}" for kind in kinds}
        options = {"net": "net", "uts": "uts", "mnt": "mount"}
        return ["nsenter", *(f"--{options[kind]}={file}" for kind, file in files.items()), "--"]


@functools.cache
def available() -> str | None:
    """Why this machine cannot make a network; None if it can. Found out by making one."""
    if sys.platform != "linux":
        return f"needs Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs the tools {', '.join(missing)}"
    try:
        Network(hosts=1, rate="1gbit").close()
    except Unavailable as error:
        return str(error)
    return None


def burst_bytes(rate: str) -> int:
    """What passes unshaped after a pause: a millisecond's worth, and no less than two of the largest packets."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if not match:
        raise ValueError(f"rate must be like 100mbit, got {rate!r}")
    return max(2**17, int(float(match[1]) * BITS[match[2]] / 8 / 1000))


def _shape(interface: str, rate: str) -> list[str]:
    bucket = ["tbf", "rate", rate, "burst", str(burst_bytes(rate)), "latency", "50ms"]
    return ["tc", "qdisc", "replace", "dev", interface, "root", *bucket]


def _delay_line(*arguments: str) -> list[str]:
    return [sys.executable, "-I", str(Path(__file__).parents[2] / "benchmarks" / "delay_line.py"), *arguments]


def _do(*command: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {' '.join((done.stderr or done.stdout).split())}")


def _call(function: str, *arguments: Any) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        raise Unavailable(f"{function}: {os.strerror(ctypes.get_errno())}")


def _warden(hosts: int, rate: str, latency_s: float) -> int:
    """Make the network, say where its namespaces are, wait for the end of the input, kill what is left."""
    maker = os.getppid()
    namespaces: list[dict[str, int]] = []
    try:
        _new_namespaces("bridge")
        namespaces.append(_open_namespaces())
        _do("ip", "link", "add", "br0", "type", "bridge")
        _do("ip", "link", "set", "br0", "up")
        names = "".join(f"10.78.0.{host} h{host}\n" for host in range(1, hosts + 1))
        for host in range(1, hosts + 1):
            _new_namespaces(f"h{host}")
            _call("mount", b"tmpfs", b"/dev/shm", b"tmpfs", 0, None)
            file = Path("/dev/shm/hosts")
            file.write_text(f"127.0.0.1 localhost\n{names}")
            _call("mount", bytes(file), b"/etc/hosts", None, 4096, None)  # MS_BIND
            file.unlink()
            # in every kernel, and steady; bbr would take a fifth off the rate of a short stream now and then
            Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text("reno")
            _do("ip", "link", "set", "lo", "up")
            here = _open_namespaces()
            namespaces.append(here)
            for kind, descriptor in namespaces[0].items():  # back to the bridge
                _call("setns", descriptor, NAMESPACES[kind])
            inside = f"/proc/{os.getpid()}/fd/{here['net']}"
            _do("ip", "link", "add", f"v{host}", "type", "veth", "peer", "name", "eth0", "netns", inside)
            _do("ip", "link", "set", f"v{host}", *(LONG if latency_s else ("master", "br0")), "up")
            _do(*_shape(f"v{host}", rate))
            _call("setns", here["net"], NAMESPACES["net"])
            _do("ip", "address", "add", f"10.78.0.{host}/24", "dev", "eth0")
            _do("ip", "link", "set", "eth0", *(LONG if latency_s else ()), "up")
            _do(*_shape("eth0", rate))
            if latency_s:
                _do(*_delay_line("finish", "eth0"))
            _call("setns", namespaces[0]["net"], NAMESPACES["net"])
        if latency_s:
            subprocess.Popen(_delay_line(str(latency_s), *(f"v{host}" for host in range(1, hosts + 1))))
    except (Unavailable, OSError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 0
    print(json.dumps({"namespaces": namespaces}), flush=True)
    while not select.select([sys.stdin], [], [], 0.5)[0] and os.getppid() == maker:
        continue  # a fork of the maker may hold the other end of the input after its death
    return 0 if _kill_members({os.fstat(opened["net"]).st_ino for opened in namespaces}) else 1


def _new_namespaces(name: str) -> None:
    _call("unshare", sum(NAMESPACES.values()))
    _call("mount", None, b"/", None, 0x4000 | 0x40000, None)  # MS_REC | MS_PRIVATE: mounts stay in here
    socket.sethostname(name)


def _open_namespaces() -> dict[str, int]:
    return {kind: os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in NAMESPACES}


def _kill_members(networks: set[int]) -> bool:
    """SIGKILL to all processes in these network namespaces, until twice in a row there is none. False: some stay."""
    quiet, deadline = 0, time.monotonic() + PATIENCE_S / 2
    while quiet < 2 and time.monotonic() < deadline:
        found = members(networks)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        quiet = 0 if found else quiet + 1
        time.sleep(0.01)
    return quiet == 2


def members(networks: set[int]) -> dict[int, str]:
    """All processes in these network namespaces but this one: their names."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if (entry / "ns" / "net").stat().st_ino in networks:
                    found[int(entry.name)] = (entry / "comm").read_text().strip()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it has ended meanwhile, or is somebody else's
    return found


if __name__ == "__main__":
    sys.exit(_warden(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
