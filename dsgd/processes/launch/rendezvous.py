"""How processes that torchrun or srun has started on many machines find the coordinator of rank 0, and agree."""

from __future__ import annotations

import errno
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.host.launcher import Launch
from dsgd.processes.job import HELLO_S

TOKEN_BYTES = 32
POLL_S = 0.05
VERDICT_S = 3.0  # by which the others outwait rank 0, which knows best who has not come


@dataclass(frozen=True)
class Meeting:
    """What rank 0 tells the others. folder: of the run. token: in hexadecimal. config: resolved, version: of the
    code."""

    host: str
    port: int
    token: str
    folder: str
    config: Mapping[str, Any]
    version: str


class NoMeeting(ConnectionError):
    """The master cannot be reached, or somebody is not there."""


def listen(host: str) -> socket.socket:
    """A listening socket of the coordinator on the interface of this address, any free port. Raises NoMeeting."""
    try:
        return socket.create_server((host, 0), backlog=1024)
    except OSError as error:
        raise NoMeeting(f"MASTER_ADDR must be an address of the machine of rank 0, got {host}: {error}") from error


def new_token() -> str:
    return secrets.token_hex(TOKEN_BYTES)


def master_of(launch: Launch) -> str:
    """The IPv4 address of the machine of rank 0 at which all others reach it. Raises NoMeeting.

    Many machines take their own name for 127.0.1.1. There it is the address of the interface that leads to another
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
            probe.connect((address_of(launch.last_host), 9))  # of a datagram socket: sends nothing
        except OSError as error:
            raise NoMeeting(f"{launch.last_host} cannot be reached from the machine of rank 0: {error}") from error
        return probe.getsockname()[0]


def address_of(name: str) -> str:
    """The IPv4 address of a host. Raises NoMeeting."""
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise NoMeeting(f"MASTER_ADDR must be the name of a host, got {name}: {error}") from error


def meet(launch: Launch, offer: Callable[[], Meeting], object_to: Callable[[Meeting], str | None]) -> Meeting:
    """Rank 0 makes the offer, everybody gets it and may object. Returns when all have come and nobody has objected.

    Raises NoMeeting with the same objection everywhere, or after at most 30 seconds."""
    deadline = time.monotonic() + HELLO_S
    with _reached(launch):
        store = _serve(launch) if _serves(launch) else _connect(launch, deadline)
        key = f"dsgd/{launch.job}"
        if launch.rank == 0:
            store.set(key, json.dumps(asdict(offer())))
        elif _missing(store, [key], deadline):
            raise NoMeeting(f"rank {launch.rank}: rank 0 did not come within {HELLO_S:g} s to {_place(launch)}")
        meeting = Meeting(**json.loads(store.get(key)))
        objection = object_to(meeting)
        verdict = _agree(launch, store, key, "" if objection is None else f"rank {launch.rank}: {objection}", deadline)
    if verdict:
        raise NoMeeting(verdict)
    return meeting


def _agree(launch: Launch, store: TCPStore, key: str, objection: str, deadline: float) -> str:
    """The objection of the lowest rank that has one, or "". Everybody knows it when this returns in rank 0."""
    others = [f"{key}/{rank}" for rank in range(1, launch.nodes)]
    if launch.rank > 0:
        store.set(f"{key}/{launch.rank}", json.dumps(objection))
        if _missing(store, [f"{key}/verdict"], deadline + VERDICT_S):
            raise NoMeeting(f"rank {launch.rank}: rank 0 no longer answers at {_place(launch)}")
        verdict = json.loads(store.get(f"{key}/verdict"))
        store.set(f"{key}/{launch.rank}/left", "")
        return verdict
    late = _missing(store, others, deadline)
    said = [objection, *(json.loads(store.get(other)) for other in others if other not in late)]
    if late:
        names = ", ".join(other.rpartition("/")[2] for other in late)
        said.append(f"rank {names} did not come within {HELLO_S:g} s to {_place(launch)}")
    verdict = next(filter(None, said), "")
    store.set(f"{key}/verdict", json.dumps(verdict))
    if _serves(launch):  # the store ends with this process
        _missing(store, [f"{other}/left" for other in others if other not in late], time.monotonic() + VERDICT_S)
    return verdict


def _missing(store: TCPStore, keys: Sequence[str], deadline: float) -> list[str]:
    """Wait for keys; returns those that are not there by the deadline. The store's own waiting would write to the
    terminal."""
    missing = list(keys)
    while missing := [key for key in missing if not store.check([key])]:
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    return missing


def _place(launch: Launch) -> str:
    return f"MASTER_ADDR={launch.master_address} MASTER_PORT={launch.master_port}"


def _serves(launch: Launch) -> bool:
    return launch.rank == 0 and not launch.agent_store


@contextmanager
def _reached(launch: Launch) -> Iterator[None]:
    try:
        yield
    except (DistNetworkError, DistStoreError) as error:
        raise NoMeeting(f"rank {launch.rank}: cannot be reached: {_place(launch)}") from error


def _serve(launch: Launch) -> TCPStore:
    """A store on the interface of the master's address, and on no other."""
    address = master_of(launch)
    try:
        listener = socket.create_server((address, launch.master_port), backlog=1024)
    except OSError as error:
        what = "port in use" if error.errno == errno.EADDRINUSE else str(error)
        raise NoMeeting(f"rank 0: {what}: {_place(launch)}") from error
    return TCPStore(
        address,
        launch.master_port,
        is_master=True,
        timeout=timedelta(seconds=HELLO_S),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def _connect(launch: Launch, deadline: float) -> TCPStore:
    """The store of somebody else. Raises NoMeeting if there is none by the deadline."""
    address, port = master_of(launch), launch.master_port
    while True:
        try:
            socket.create_connection((address, port), max(deadline - time.monotonic(), POLL_S)).close()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise NoMeeting(f"rank {launch.rank}: cannot be reached: {_place(launch)}") from error
            time.sleep(POLL_S)
    answer: SimpleQueue[TCPStore | Exception] = SimpleQueue()

    def connect() -> None:
        limit = timedelta(seconds=HELLO_S)
        try:
            answer.put(TCPStore(address, port, is_master=False, timeout=limit, wait_for_workers=False))
        except (DistNetworkError, DistStoreError) as error:
            answer.put(error)

    # whatever else may listen there: a store's client waits for its answer without a limit
    connecting = threading.Thread(target=connect, name="meeting", daemon=True)
    connecting.start()
    try:
        found = answer.get(timeout=max(deadline - time.monotonic(), POLL_S))
    except Empty as error:
        raise NoMeeting(f"rank {launch.rank}: something else listens at {_place(launch)}") from error
    connecting.join()  # this process is about to fork
    if isinstance(found, Exception):
        raise found
    return found
