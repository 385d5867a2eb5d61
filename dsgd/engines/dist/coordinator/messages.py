"""The messages that a client of the coordinator may send: declared as types, and checked before use.

A client with the token may still send an invalid message. That ends its connection, with a line in the log, and not the
coordinator. Types declare the fields of a message in any run; `MessageRules` checks their values, by the client's role.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, TypeVar

import torch
from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, convert
from msgspec.structs import fields
from torch import Tensor

from dsgd.engines.dist.control import Client
from dsgd.engines.dist.frames import SPANS, BadFrame, Message, printable
from dsgd.engines.dist.job import ProcessJob
from dsgd.host.gpu_facts import FactName

Whole = Annotated[int, Meta(ge=0, lt=1 << 53)]
Number = Annotated[float, Meta(gt=-1e300, lt=1e300)]  # which NaN is not either
Seconds = Annotated[float, Meta(ge=0, lt=1e300)]
ShortText = Annotated[str, Meta(max_length=100)]  # name of a mark, checkpoint or vector; a digest
OF_WORKERS = ("computed", "diverged", "gpu", "offer")  # not of servers
PRINTED_LIMIT = 10_000  # characters of a process's error message


class Declared(Struct, frozen=True, forbid_unknown_fields=True):
    """An object of JSON with these fields and no others."""


class NodeCounters(Declared, frozen=True):
    """The counters of one node. sent, received: [nodes], bytes to and from each node."""

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
    """The state of a worker in a checkpoint, without steps, counters and vectors. In a mark all fields are unset."""

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
    key: ShortText


class Offer(ClientMessage, frozen=True):
    key: ShortText
    digests: dict[ShortText, ShortText]


class SnapshotMessage(Heartbeat, frozen=True):
    """A snapshot without its vectors. same: names of vectors that another worker sends."""

    key: ShortText
    time_s: Seconds
    extra: WorkerState
    same: tuple[ShortText, ...] = ()


class Start(ClientMessage, frozen=True):
    rank: Whole
    digest: dict[str, dict[str, str]]
    hash: str


HELLOS = {"node": NodeHello, "snapshots": SnapshotsHello, "agent": Hello}
OF_ROLES: dict[str | None, dict[str, type[ClientMessage]]] = {
    None: {"failed": Failed},  # before it could announce its role
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
M = TypeVar("M", bound=ClientMessage)


def as_declared(message: Message, declared: type[M]) -> M:
    """Return a message with the types of its fields. Raises BadFrame unless it has these fields."""
    try:
        return convert(message, declared)
    except (ValidationError, UnicodeEncodeError) as error:  # UnicodeEncodeError: a name that is not valid text
        raise BadFrame(f"a {message['kind']} message had {_offence(message, declared)}") from error


def _offence(message: Message, declared: type[ClientMessage]) -> str:
    """Return the error of a message. Do not use msgspec's text, which may quote the sender."""
    for field in fields(declared):
        try:
            if field.required or field.name in message:
                convert(message[field.name], field.type)
        except (KeyError, ValidationError, UnicodeEncodeError):
            return f"no possible {field.name}"
    return "a field that it may not have"


class MessageRules:
    """The rules for the clients of one run. clients: the most connections at a time, twice what the run needs."""

    def __init__(self, job: ProcessJob) -> None:
        p, k = job.experiment.nodes, job.experiment.algo.servers
        self.clients = 2 * (2 * (p + k) + p)  # each node has two, and there are parents
        self._nodes, self._workers = p + k, p
        self._lockstep = job.experiment.algo.lockstep
        self._limit = job.snapshot_limit
        self._output = job.experiment.algo.output
        self._remembered = job.experiment.optimizer.remembers
        start, buffers = job.problem.start, job.problem.start_buffers
        self._x = [start.numel()] * p + ([part.numel() for part in start.tensor_split(k)] if k else [])
        self._buffers = buffers.numel()
        self._dtype = start.dtype
        self._parts = job.digest.keys()

    def check(self, client: Client, message: Message, vectors: Mapping[str, Tensor]) -> None:
        """Raise BadFrame unless this client may send this message. A hello sets the client's role."""
        sent = as_declared(message, self._declared(client, message))
        for field, is_possible in self._judge(client.node, sent).items():
            if not is_possible:
                raise BadFrame(f"a {message['kind']} message had no possible {field}")
        if isinstance(sent, Hello):
            client.role, client.node = sent.role, message.get("node")
            if client.role == "snapshots":
                client.exclusive, client.limit = f"snapshots of node {client.node}", self._limit
        if isinstance(sent, SnapshotMessage):
            assert client.node is not None
            self._check_vectors(client.node, sent, vectors)
        if isinstance(sent, Failed):
            message["error"] = printable(sent.error, PRINTED_LIMIT)

    def _declared(self, client: Client, message: Message) -> type[ClientMessage]:
        """Return the type of this kind of message from this client."""
        kind, role = message["kind"], message.get("role")
        if kind == "hello" and client.role is None:
            if not isinstance(role, str) or role not in HELLOS:
                raise BadFrame("a hello named no part in the run")
            return HELLOS[role]
        declared = OF_ROLES[client.role]
        if kind not in declared or (kind in OF_WORKERS and not self._is_worker(client.node)):
            raise BadFrame("a message came from a process that does not send such")
        return declared[kind]

    def _judge(self, node: int | None, sent: ClientMessage) -> dict[str, bool]:
        """Return {field: whether its value is possible} for fields that depend on more than their types."""
        match sent:
            case NodeHello():
                return {"node": sent.node < self._nodes, "host": _is_address(sent.host)}
            case SnapshotsHello():
                return {"node": sent.node < self._nodes}
            case Failed():
                return {"suspect": sent.suspect is None or sent.suspect < self._nodes}
            case SnapshotMessage():
                is_step, is_checkpoint = sent.key.startswith("step:"), sent.key.startswith("checkpoint")
                return {
                    "counters": self._are_counters(node, sent.counters),
                    "key": not is_step or (self._lockstep and sent.key == f"step:{sent.steps}"),
                    "extra": not (is_checkpoint and self._is_worker(node))
                    or UNSET not in (sent.extra.batches, sent.extra.rng),
                }
            case Heartbeat():
                return {"counters": self._are_counters(node, sent.counters)}
            case Offer():
                return {"digests": self._lockstep and self._are_vectors(sent.digests)}
            case Start():
                return {"rank": self._is_worker(sent.rank), "digest": sent.digest.keys() == self._parts}
        return {}

    def _is_worker(self, node: int | None) -> bool:
        return node is not None and node < self._workers

    def _are_counters(self, node: int | None, counters: NodeCounters) -> bool:
        """Return whether a process may have these counters. A worker's counters have busy_s, unless they are empty."""
        of_nodes = [counts for counts in (counters.sent, counters.received) if counts is not UNSET]
        has_busy = not self._is_worker(node) or counters.busy_s is not UNSET or counters == NodeCounters()
        return has_busy and all(len(counts) == self._nodes for counts in of_nodes)

    def _are_vectors(self, names: Mapping[str, str]) -> bool:
        """Return whether a snapshot may have vectors with these names."""
        known = ("x", "buffers", *self._remembered)
        return len(names) <= self._limit.vectors and all(n in known or n.startswith("kept.") for n in names)

    def _check_vectors(self, node: int, sent: SnapshotMessage, vectors: Mapping[str, Tensor]) -> None:
        """Check that the vectors of a snapshot can be evaluated, and the whole be resumed from."""
        is_worker = node < self._workers
        lengths = {"x": self._x[node]}
        if is_worker:
            lengths["buffers"] = self._buffers
        elif self._output is not None:
            lengths[self._output] = self._x[node]
        lengths |= {
            name: self._x[node]
            for name in vectors
            if is_worker and (name in self._remembered or name.startswith("kept."))
        }
        lengths = {name: length for name, length in lengths.items() if name not in sent.same}
        spans = [vectors[name] for name in SPANS if name in vectors] if self._limit.spans else []
        if any(name not in vectors or vectors[name].numel() != length for name, length in lengths.items()):
            raise BadFrame("a snapshot had a vector of another length")
        if any(vectors[name].dtype != self._dtype for name in lengths):
            raise BadFrame("a snapshot had a vector of another type")
        if len(spans) == 1 or any(len(s) % 2 or s.dtype != torch.float64 or not s.isfinite().all() for s in spans):
            raise BadFrame("a snapshot had intervals that are none")


def _is_address(host: str) -> bool:
    """Return whether this is an IP address, which may go to a terminal: the scope of one may be any text."""
    try:
        return bool(ipaddress.ip_address(host)) and host.isprintable()
    except ValueError:
        return False
