"""The processes that torchrun or srun has started: they agree on a configuration before anything is done."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path

from dsgd.engines.dist.launch.agreement import Meeting, meet
from dsgd.engines.dist.launch.rendezvous import NoMeeting, listen, master_of
from dsgd.host.launcher import Launch
from dsgd.record.writer import code_version
from dsgd.runner.configuration import RunConfig
from dsgd.runner.resume import compare
from dsgd.runner.values import ConfigError, with_numbers


@dataclass(frozen=True)
class Joined:
    """This process's part in the meeting. token: of the run, in hexadecimal. listener: of the coordinator, in rank
    0."""

    rank: int
    meeting: Meeting
    token: str
    listener: socket.socket | None


def join(where: Launch, config: RunConfig, folder: Path) -> Joined:
    """Meet the other processes of this launch.

    folder: of the record, if this is rank 0. Raises ConfigError, in all of them, if one does not come, or has another
    configuration or other code than rank 0."""
    if where.nodes != config.experiment.nodes:
        variable = "WORLD_SIZE" if where.kind == "torchrun" else "SLURM_NTASKS"
        given = config.experiment.nodes
        raise ConfigError(f"nodes must be {variable}={where.nodes}, the processes started, got {given}")
    values = dict(config.values)
    version = code_version()
    listener: socket.socket | None = None

    def offer() -> Meeting:
        assert listener is not None
        host, port = listener.getsockname()[:2]
        return Meeting(host, port, str(folder), values, version)

    def object_to(meeting: Meeting) -> str | None:
        try:
            compare(with_numbers(dict(meeting.config)), with_numbers(json.loads(json.dumps(values))), "", "on rank 0")
        except ConfigError as error:
            return str(error)
        except (ValueError, RecursionError):  # nobody vouches for what stands in the store
            return "the configuration of rank 0 cannot be read"
        return (
            None if version == meeting.version else f"the code must be {meeting.version}, as on rank 0, got {version}"
        )

    try:
        if where.rank == 0:
            listener = listen(master_of(where))
        meeting, token = meet(where, offer, object_to)
    except NoMeeting as error:
        raise ConfigError(str(error)) from error
    return Joined(where.rank, meeting, token, listener)
