"""Rendezvous: processes started by torchrun or srun find the coordinator of rank 0 and agree on the run."""

from __future__ import annotations

import errno
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.host.launcher import Launch
from dsgd.processes.job import JOIN_TIMEOUT_S

TOKEN_BYTES = 32
STORE_POLL_S = 0.05
VERDICT_MARGIN_S = 3.0  # other ranks wait this much longer than rank 0, which knows best who is missing


@dataclass(frozen=True)
class Meeting:
    """The run that rank 0 proposes to the others. host, port: of its coordinator. folder: of the record. token: in
    hexadecimal. config: resolved. version: of the code."""

    host: str
    port: int
    token: str
    folder: str
    config: Mapping[str, Any]
    version: str


class NoMeeting(ConnectionError):
    """Raised when the master cannot be reached, or a rank is missing or objects."""


def listen(host: str) -> socket.socket:
    """Open a listening socket for the coordinator at this address, on any free port. Raises NoMeeting."""
    try:
        return socket.create_server((host, 0), backlog=1024)
    except OSError as error:
        raise NoMeeting(f"MASTER_ADDR must be an address of the machine of rank 0, got {host}: {error}") from error


def serve_store(listener: socket.socket) -> TCPStore:
    """Serve a store at this listener. By itself a store would listen on every interface."""
    host, port = listener.getsockname()[:2]
    limit = timedelta(seconds=JOIN_TIMEOUT_S)
    return TCPStore(
        host, port, is_master=True, timeout=limit, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def new_token() -> str:
    """Return a random token, in hexadecimal, that admits processes to the run."""
    return secrets.token_hex(TOKEN_BYTES)


def master_of(launch: Launch) -> str:
    """Return the IPv4 address at which all machines reach that of rank 0. Raises NoMeeting.

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
        raise NoMeeting(f"MASTER_ADDR must be the name of a host, got {name}: {error}") from error


def meet(launch: Launch, offer: Callable[[], Meeting], object_to: Callable[[Meeting], str | None]) -> Meeting:
    """Agree on the run that rank 0 offers: all ranks get the offer and may object; returns when all have accepted.

    offer: called in rank 0. object_to: returns an objection or None. Raises NoMeeting with the same objection in every
    rank, or after at most 30 seconds."""
    deadline = time.monotonic() + JOIN_TIMEOUT_S
    try:
        store = _serve(launch) if _serves(launch) else _connect(launch, deadline)
        key = f"dsgd/{launch.job}"
        if launch.rank == 0:
            store.set(key, json.dumps(asdict(offer())))
        elif _missing(store, [key], deadline):
            raise NoMeeting(f"rank {launch.rank}: rank 0 did not come within {JOIN_TIMEOUT_S:g} s to {_master(launch)}")
        meeting = Meeting(**json.loads(store.get(key)))
        objection = object_to(meeting)
        verdict = _agree(launch, store, key, "" if objection is None else f"rank {launch.rank}: {objection}", deadline)
    except (DistNetworkError, DistStoreError) as error:
        raise NoMeeting(f"rank {launch.rank}: cannot be reached: {_master(launch)}") from error
    if verdict:
        raise NoMeeting(verdict)
    return meeting


def _agree(launch: Launch, store: TCPStore, key: str, objection: str, deadline: float) -> str:
    """Return the objection of the lowest rank that has one, or "". All ranks have received it when rank 0 returns."""
    others = [f"{key}/{rank}" for rank in range(1, launch.nodes)]
    if launch.rank > 0:
        store.set(f"{key}/{launch.rank}", json.dumps(objection))
        if _missing(store, [f"{key}/verdict"], deadline + VERDICT_MARGIN_S):
            raise NoMeeting(f"rank {launch.rank}: rank 0 no longer answers at {_master(launch)}")
        verdict = json.loads(store.get(f"{key}/verdict"))
        store.set(f"{key}/{launch.rank}/left", "")
        return verdict
    late = _missing(store, others, deadline)
    said = [objection, *(json.loads(store.get(other)) for other in others if other not in late)]
    if late:
        names = ", ".join(other.rpartition("/")[2] for other in late)
        said.append(f"rank {names} did not come within {JOIN_TIMEOUT_S:g} s to {_master(launch)}")
    verdict = next(filter(None, said), "")
    store.set(f"{key}/verdict", json.dumps(verdict))
    if _serves(launch):  # the store ends with this process
        _missing(store, [f"{other}/left" for other in others if other not in late], time.monotonic() + VERDICT_MARGIN_S)
    return verdict


def _missing(store: TCPStore, keys: Sequence[str], deadline: float) -> list[str]:
    """Wait for keys; returns those missing at the deadline. The store's own wait would print to the terminal."""
    while (missing := [key for key in keys if not store.check([key])]) and time.monotonic() <= deadline:
        time.sleep(STORE_POLL_S)
    return missing


def _master(launch: Launch) -> str:
    return f"MASTER_ADDR={launch.master_address} MASTER_PORT={launch.master_port}"


def _serves(launch: Launch) -> bool:
    return launch.rank == 0 and not launch.agent_store


def _serve(launch: Launch) -> TCPStore:
    """Serve the store of the rendezvous at the master's address, and on no other interface."""
    address = master_of(launch)
    try:
        listener = socket.create_server((address, launch.master_port), backlog=1024)
    except OSError as error:
        what = "port in use" if error.errno == errno.EADDRINUSE else str(error)
        raise NoMeeting(f"rank 0: {what}: {_master(launch)}") from error
    return serve_store(listener)


def _connect(launch: Launch, deadline: float) -> TCPStore:
    """Connect to the store that another process serves. Raises NoMeeting if there is none by the deadline."""
    address, port = master_of(launch), launch.master_port
    while True:
        try:
            socket.create_connection((address, port), max(deadline - time.monotonic(), STORE_POLL_S)).close()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise NoMeeting(f"rank {launch.rank}: cannot be reached: {_master(launch)}") from error
            time.sleep(STORE_POLL_S)
    answer: Future[TCPStore] = Future()

    def connect() -> None:
        limit = timedelta(seconds=JOIN_TIMEOUT_S)
        try:
            answer.set_result(TCPStore(address, port, is_master=False, timeout=limit, wait_for_workers=False))
        except (DistNetworkError, DistStoreError) as error:
            answer.set_exception(error)

    # in a thread: where something else listens, a store's client waits for its answer without a limit
    connecting = threading.Thread(target=connect, name="meeting", daemon=True)
    connecting.start()
    try:
        store = answer.result(timeout=max(deadline - time.monotonic(), STORE_POLL_S))
    except TimeoutError as error:
        raise NoMeeting(f"rank {launch.rank}: something else listens at {_master(launch)}") from error
    connecting.join()  # this process is about to fork
    return store
