"""Declare the messages that a client of the coordinator may send, and check that a message is as declared.

What depends on the run is checked by `messages.py`.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, convert
from msgspec.structs import fields

from dsgd.engines.dist.frames import BadFrame, Message
from dsgd.host.gpu_facts import FactName

Whole = Annotated[int, Meta(ge=0, lt=1 << 53)]
Number = Annotated[float, Meta(gt=-1e300, lt=1e300)]  # which NaN is not either
Seconds = Annotated[float, Meta(ge=0, lt=1e300)]
Key = Annotated[str, Meta(max_length=100)]  # name of a mark, checkpoint or vector; a digest


class Declared(Struct, frozen=True, forbid_unknown_fields=True):
    """An object of JSON with these fields and no others."""


class NodeCounters(Declared, frozen=True):
    """The counters of one node. sent, received: to and from each node."""

    sent: tuple[Number, ...] | UnsetType = UNSET
    received: tuple[Number, ...] | UnsetType = UNSET
    reduced: Number | UnsetType = UNSET
    staleness: tuple[Number, Number, Number] | UnsetType = UNSET
    missed: Number | UnsetType = UNSET
    busy_s: Number | UnsetType = UNSET
    gpu_peak_bytes: Number | UnsetType = UNSET


class GeneratorNumbers(Declared, frozen=True):
    state: int
    inc: int


class GeneratorState(Declared, frozen=True):
    """The state of a generator of `dsgd.streams`, as numpy describes it."""

    bit_generator: str
    state: GeneratorNumbers
    has_uint32: int
    uinteger: int


class WorkerState(Declared, frozen=True):
    """The state of a worker in a checkpoint, besides steps, counters and vectors. In a mark all fields are unset."""

    batches: Whole | UnsetType = UNSET
    optimizer_steps: Whole | UnsetType = UNSET
    rng: GeneratorState | UnsetType = UNSET


class ClientMessage(Declared, frozen=True):
    kind: str


class Hello(ClientMessage, frozen=True):
    role: str


class SnapshotsHello(Hello, frozen=True):
    node: Whole


class NodeHello(SnapshotsHello, frozen=True):
    host: str
    port: Annotated[int, Meta(gt=0, lt=1 << 16)]
    gpus: bool


class Failed(ClientMessage, frozen=True):
    error: str
    suspect: Whole | None
    caused_by_peer: bool


class Gpu(ClientMessage, frozen=True):
    facts: dict[FactName, Annotated[str, Meta(max_length=1000)]]


class StepsMessage(ClientMessage, frozen=True):
    steps: Whole


class Heartbeat(StepsMessage, frozen=True):
    counters: NodeCounters


class Ended(StepsMessage, frozen=True):
    time_s: Seconds


class Missed(StepsMessage, frozen=True):
    key: Key


class Offer(ClientMessage, frozen=True):
    key: Key
    digests: dict[Key, Key]


class SnapshotMessage(Heartbeat, frozen=True):
    """A snapshot without its vectors. same: names of those that another worker sends."""

    key: Key
    time_s: Seconds
    extra: WorkerState
    same: tuple[Key, ...] = ()


class Start(ClientMessage, frozen=True):
    rank: Whole
    digest: dict[str, dict[str, str]]
    hash: str


HELLOS = {"node": NodeHello, "snapshots": SnapshotsHello, "agent": Hello}
OF_ROLES: dict[str | None, dict[str, type[ClientMessage]]] = {
    None: {"failed": Failed},  # before it could say who it is
    "node": {
        "gpu": Gpu,
        "ready": ClientMessage,
        "computed": StepsMessage,
        "steps": StepsMessage,
        "heartbeat": Heartbeat,
        "ended": Ended,
        "diverged": Ended,
        "missed": Missed,
        "failed": Failed,
    },
    "snapshots": {"offer": Offer, "snapshot": SnapshotMessage},
    "agent": {"interrupt": ClientMessage, "start": Start},
}
OF_WORKERS = ("computed", "diverged", "gpu", "offer")  # not of servers
M = TypeVar("M", bound=ClientMessage)


def as_declared(message: Message, declared: type[M]) -> M:
    """Return a message with the types of its fields. Raises BadFrame unless it has these fields."""
    try:
        return convert(message, declared)
    except (ValidationError, UnicodeEncodeError) as error:  # the latter: of a name that is no text
        raise BadFrame(f"a {message['kind']} message had {_offence(message, declared)}") from error


def _offence(message: Message, declared: type[ClientMessage]) -> str:
    """Return what is wrong with a message. What msgspec says of it may have the words of whoever sent it."""
    for field in fields(declared):
        try:
            if field.required or field.name in message:
                convert(message[field.name], field.type)
        except (KeyError, ValidationError, UnicodeEncodeError):
            return f"no possible {field.name}"
    return "a field that it may not have"
