"""How processes that torchrun or srun has started on many machines find the coordinator of rank 0."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.dist.environment import Launch
from dsgd.dist.job import HELLO_S

TOKEN_BYTES = 32


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
    """The master cannot be reached, or nobody is there."""


def listen(host: str) -> socket.socket:
    """A listening socket of the coordinator on the interface of this address, any free port. Raises NoMeeting."""
    try:
        return socket.create_server((host, 0), backlog=1024)
    except OSError as error:
        raise NoMeeting(f"MASTER_ADDR must be an address of the machine of rank 0, got {host}: {error}") from error


def new_token() -> str:
    return secrets.token_hex(TOKEN_BYTES)


def address_of(name: str) -> str:
    """The IPv4 address of a host. Raises NoMeeting."""
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise NoMeeting(f"MASTER_ADDR must be the name of a host, got {name}: {error}") from error


def meet(launch: Launch, offer: Callable[[], Meeting]) -> tuple[Meeting, TCPStore]:
    """Rank 0 makes the offer, everybody gets it. The store must be kept while others may still read it.

    Raises NoMeeting after at most 25 seconds."""
    place = f"MASTER_ADDR={launch.master_address} MASTER_PORT={launch.master_port}"
    serves = launch.rank == 0 and not launch.agent_store
    try:
        store = TCPStore(
            launch.master_address,
            launch.master_port,
            is_master=serves,
            timeout=timedelta(seconds=HELLO_S),
            wait_for_workers=False,
        )
        key = f"dsgd/{launch.job}"
        if launch.rank == 0:
            store.set(key, json.dumps(asdict(offer())))
        return Meeting(**json.loads(store.get(key))), store
    except DistNetworkError as error:
        what = "port in use" if serves and "in use" in str(error) else "cannot be reached"
        raise NoMeeting(f"rank {launch.rank}: {what}: {place}") from error
    except DistStoreError as error:
        raise NoMeeting(f"rank {launch.rank}: rank 0 did not come within {HELLO_S:g} s to {place}") from error
