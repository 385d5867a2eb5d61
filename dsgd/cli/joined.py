"""This process among those that torchrun or srun has started: they must agree before anything is done."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.cli.build import ConfigError
from dsgd.cli.resume import compare, with_numbers
from dsgd.dist.control import Closed, Line
from dsgd.dist.environment import Launch
from dsgd.dist.rendezvous import Meeting, NoMeeting, address_of, listen, meet, new_token
from dsgd.record.writer import code_version

TELL_S = 5.0


@dataclass(frozen=True)
class Joined:
    """listener: of the coordinator, in rank 0. store: must live as long as others may read the meeting from it."""

    rank: int
    local_rank: int
    local_workers: int  # on this machine
    meeting: Meeting
    listener: socket.socket | None
    store: TCPStore


def join(where: Launch, values: Mapping[str, Any], folder: Path) -> Joined:
    """Meet the other processes. folder: of the record, if this is rank 0. Raises ConfigError if they cannot be reached,
    or have another configuration or other code than rank 0."""
    listener = None
    version = code_version()
    try:
        if where.rank == 0:
            listener = listen(address_of(where.master_address))

        def offer() -> Meeting:
            assert listener is not None
            host, port = listener.getsockname()[:2]
            return Meeting(host, port, new_token(), str(folder), dict(values), version)

        meeting, store = meet(where, offer)
    except NoMeeting as error:
        raise ConfigError(str(error)) from error
    if where.rank > 0:
        try:
            compare(with_numbers(dict(meeting.config)), with_numbers(json.loads(json.dumps(values))), "", "on rank 0")
            if version != meeting.version:
                raise ConfigError(f"the code must be {meeting.version}, as on rank 0, got {version}")
        except ConfigError as error:
            text = f"rank {where.rank}: {error}"
            _tell(meeting, text)
            raise ConfigError(text) from error
    return Joined(where.rank, where.local_rank, where.local_nodes, meeting, listener, store)


def _tell(meeting: Meeting, text: str) -> None:
    """Let rank 0 fail for the same reason, rather than wait."""
    try:
        line = Line((meeting.host, meeting.port), bytes.fromhex(meeting.token), TELL_S)
        line.send({"kind": "mismatch", "error": text})
        line.receive()
    except Closed:  # rank 0 has gone already
        return
