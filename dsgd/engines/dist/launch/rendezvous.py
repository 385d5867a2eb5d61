"""The meeting point of processes started by torchrun or srun: the address of rank 0, and its store."""

from __future__ import annotations

import errno
import secrets
import socket
import threading
import time
from concurrent.futures import Future
from datetime import timedelta

from torch.distributed import DistNetworkError, DistStoreError, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.engines.dist.job import JOIN_TIMEOUT_S
from dsgd.host.launcher import Launch

TOKEN_BYTES = 32
STORE_POLL_S = 0.05


class NoMeeting(ConnectionError):
    """Raised when the master cannot be reached, or a rank is missing or objects."""


def listen(host: str) -> socket.socket:
    """Open a listening socket for the coordinator at this address, on any free port. Raises NoMeeting."""
    try:
        return socket.create_server((host, 0), backlog=1024)
    except OSError as error:
        raise NoMeeting(f"MASTER_ADDR must be an address of the machine of rank 0, got {host}: {error}") from error


def serve_store(listener: socket.socket) -> TCPStore:
    """Serve a store at this listener. By default a store would listen on every interface."""
    host, port = listener.getsockname()[:2]
    limit = timedelta(seconds=JOIN_TIMEOUT_S)
    return TCPStore(
        host, port, is_master=True, timeout=limit, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def new_token() -> str:
    """Return a random token, in hexadecimal, that admits processes to the run."""
    return secrets.token_hex(TOKEN_BYTES)


def master_of(launch: Launch) -> str:
    """Return the IPv4 address at which all machines reach rank 0's machine. Raises NoMeeting.

    Many machines resolve their own name to 127.0.1.1; there it is the address of the interface that leads to another
    machine of the step."""
    address = address_of(launch.master_address)
    if not address.startswith("127.") or launch.local_nodes == launch.nodes:
        return address
    if launch.last_host is None:
        raise NoMeeting(
            f"MASTER_ADDR must be an address that other machines reach, got {launch.master_address}, which is {address}"
        )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address_of(launch.last_host), 9))  # a datagram socket sends nothing here
        except OSError as error:
            raise NoMeeting(f"{launch.last_host} cannot be reached from the machine of rank 0: {error}") from error
        return probe.getsockname()[0]


def address_of(name: str) -> str:
    """Resolve the name of a host to an IPv4 address. Raises NoMeeting."""
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        if _has_ipv6(name):
            raise NoMeeting(
                f"MASTER_ADDR must be a host with an IPv4 address, got {name}, which has IPv6 only"
            ) from error
        raise NoMeeting(f"MASTER_ADDR must be the name of a host, got {name}: {error}") from error


def _has_ipv6(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name.strip("[]"), None, socket.AF_INET6))
    except OSError:
        return False


def store_address(launch: Launch) -> str:
    """Return the address of the store, as given by the user."""
    return f"MASTER_ADDR={launch.master_address} MASTER_PORT={launch.master_port}"


def open_store(launch: Launch, deadline: float) -> TCPStore:
    """Serve the store of the rendezvous, or connect to it until the deadline. Raises NoMeeting."""
    return _serve(launch) if launch.rank == 0 and not launch.agent_store else _connect(launch, deadline)


def _serve(launch: Launch) -> TCPStore:
    """Serve the store of the rendezvous at the master's address, and on no other interface."""
    address = master_of(launch)
    try:
        listener = socket.create_server((address, launch.master_port), backlog=1024)
    except OSError as error:
        what = "port in use" if error.errno == errno.EADDRINUSE else str(error)
        raise NoMeeting(f"rank 0: {what}: {store_address(launch)}") from error
    return serve_store(listener)


def _connect(launch: Launch, deadline: float) -> TCPStore:
    """Connect to the store that another process serves. Raises NoMeeting if it is not reached by the deadline."""
    address, port = master_of(launch), launch.master_port
    while True:
        try:
            socket.create_connection((address, port), max(deadline - time.monotonic(), STORE_POLL_S)).close()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise NoMeeting(f"rank {launch.rank}: cannot be reached: {store_address(launch)}") from error
            time.sleep(STORE_POLL_S)
    answer: Future[TCPStore] = Future()

    def connect() -> None:
        limit = timedelta(seconds=JOIN_TIMEOUT_S)
        try:
            answer.set_result(TCPStore(address, port, is_master=False, timeout=limit, wait_for_workers=False))
        except (DistNetworkError, DistStoreError) as error:
            answer.set_exception(error)

    # in a thread: if another program listens there, a store's client waits for its answer without a limit
    connecting = threading.Thread(target=connect, name="meeting", daemon=True)
    connecting.start()
    try:
        store = answer.result(timeout=max(deadline - time.monotonic(), STORE_POLL_S))
    except TimeoutError as error:
        raise NoMeeting(f"rank {launch.rank}: something else listens at {store_address(launch)}") from error
    connecting.join()  # this process is about to fork
    return store
