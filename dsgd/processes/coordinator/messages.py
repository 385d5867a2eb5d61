"""Check what a client of the coordinator sends: by its part in the run, field by field, before anybody acts on it.

Whoever has shown the token is let in; that does not make sense of what it sends. A message that is not as it should be
ends its connection, with a line in the log, and not the coordinator.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from dsgd.host.gpu_facts import FACTS, PEAK
from dsgd.processes.control import Client
from dsgd.processes.frames import SPANS, BadFrame, Message
from dsgd.processes.job import ProcessJob
from dsgd.safe_text import for_terminal
from dsgd.streams import stream

KEY_LIMIT = 100  # characters in the name of a mark or checkpoint
PRINTED_LIMIT = 10_000  # characters of what a process says about an error
FACT_LIMIT = 1000  # characters of a fact of a worker's GPUs
PRINTED = ("error", "name")  # fields that go to the terminal
OF_WORKERS = ("computed", "diverged", "gpu", "offer")  # not of servers
SUMS = 5  # numbers of `dsgd.problem.problem.Sums`
FieldCheck = Callable[[Any], bool]


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300  # which NaN is not either


def _is_time(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_key(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= KEY_LIMIT


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_host(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(ipaddress.ip_address(value))
    except ValueError:
        return False


def _is_port(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 16


def _are_counters(value: Any) -> bool:
    """Counters of one node: numbers, and lists of them. Those of a worker have busy_s."""
    return isinstance(value, dict) and all(
        (isinstance(content, list) and all(map(_is_number, content))) or _is_number(content)
        for content in value.values()
    )


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_key, value))


def _are_sums(value: Any) -> bool:
    """Sums over samples, for each set: of losses and their squares, which may be no numbers, and three counts."""
    return isinstance(value, list) and all(
        isinstance(sums, list)
        and len(sums) == SUMS
        and all(type(number) in (int, float) for number in sums[:2])
        and all(map(_is_whole, sums[2:]))
        for sums in value
    )


def _are_facts(value: Any) -> bool:
    """Facts of a worker's GPUs: short texts by the names of `dsgd.host.gpu_facts`."""
    return isinstance(value, dict) and all(
        name in FACTS and isinstance(text, str) and len(text) <= FACT_LIMIT for name, text in value.items()
    )


def _has_form_of(value: Any, pattern: Any) -> bool:
    """Return whether a value of JSON has the keys and types of another one, all the way down."""
    if isinstance(pattern, dict):
        return (
            isinstance(value, dict)
            and value.keys() == pattern.keys()
            and all(_has_form_of(value[key], inner) for key, inner in pattern.items())
        )
    return type(value) is type(pattern)


class MessageRules:
    """The rules for the clients of one run. clients: the most connections at a time, twice what the run needs."""

    def __init__(self, job: ProcessJob) -> None:
        p, k = job.experiment.nodes, job.experiment.algo.servers
        self.clients = 2 * (2 * (p + k) + 2 * p)  # each node has two, and there are evaluators and parents
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
        self._rng = stream("algorithm", 0, 0).bit_generator.state
        node: Mapping[str, FieldCheck] = {"node": self._is_node}
        self._hellos: dict[Any, Mapping[str, FieldCheck]] = {
            "node": {**node, "host": _is_host, "port": _is_port, "gpus": _is_truth},
            "snapshots": node,
            "evaluator": {"name": _is_text},
            "agent": {},
        }
        failed: Mapping[str, FieldCheck] = {"error": _is_text, "suspect": self._is_suspect, "caused_by_peer": _is_truth}
        steps: Mapping[str, FieldCheck] = {"steps": _is_whole}
        heartbeat: Mapping[str, FieldCheck] = {**steps, "counters": _are_counters}
        self._kinds: dict[str | None, dict[str, Mapping[str, FieldCheck]]] = {
            None: {"failed": failed},  # before it could say who it is
            "node": {
                "gpu": {"facts": _are_facts},
                "ready": {},
                "computed": steps,
                "steps": steps,
                "heartbeat": heartbeat,
                "ended": {**steps, "time_s": _is_time},
                "diverged": {**steps, "time_s": _is_time},
                "missed": {**steps, "key": _is_key},
                "failed": failed,
            },
            "snapshots": {
                "offer": {"key": _is_key, "digests": self._are_digests},
                "snapshot": {
                    **steps, "key": _is_key, "time_s": _is_time, "counters": _are_counters, "extra": self._is_extra
                },
            },
            "evaluator": {"heartbeat": heartbeat, "evaluated": {}, "failed": failed},
            "agent": {
                "interrupt": {}, "start": {"rank": self._is_rank, "digest": self._is_digest, "hash": _is_text}
            },
        }  # fmt: skip

    def check(self, client: Client, message: Message, vectors: Mapping[str, Tensor]) -> None:
        """Raise BadFrame unless this client may send this message. A hello says what the client is from now on."""
        kind = message["kind"]
        if kind == "hello" and client.role is None:
            role = message.get("role")
            if not isinstance(role, str) or role not in self._hellos:
                raise BadFrame("a hello named no part in the run")
            self._check_fields(message, {"role": _is_text, **self._hellos[role]})
            client.role, client.node = role, message.get("node") if role in ("node", "snapshots") else None
            if role == "snapshots":
                client.exclusive, client.limit = f"snapshots of node {client.node}", self._limit
        elif kind not in self._kinds[client.role] or (kind in OF_WORKERS and not self._is_worker(client.node)):
            raise BadFrame("a message came from a process that does not send such")
        else:
            expected = self._kinds[client.role][kind]
            if kind == "evaluated":
                expected = {"error": _is_text} if "error" in message else {"sums": _are_sums}
            if kind == "snapshot" and "same" in message:  # names of vectors that another worker sends
                expected = {**expected, "same": _are_names}
            self._check_fields(message, expected)
            if kind in ("heartbeat", "snapshot") and client.node is not None:
                self._check_counters(client.node, message["counters"])
            if kind == "snapshot":
                assert client.node is not None
                self._check_snapshot(client.node, message, vectors)
        for field in PRINTED:
            if field in message:
                message[field] = _printable(message[field])

    def _check_fields(self, message: Message, expected: Mapping[str, FieldCheck]) -> None:
        for field, is_right in expected.items():
            if field not in message or not is_right(message[field]):
                raise BadFrame(f"a {message['kind']} message had no possible {field}")
        if message.keys() - expected.keys() - {"kind"}:
            raise BadFrame(f"a {message['kind']} message had a field that it may not have")

    def _check_counters(self, node: int, counters: Mapping[str, Any]) -> None:
        staleness = counters.get("staleness", [0, 0, 0])
        names = ("bytes_sent", "bytes_received", "reduced", "busy_s", "missed", PEAK)
        plain = all(_is_number(counters.get(name, 0)) for name in names)
        plain &= all(self._are_of_nodes(counters[name]) for name in ("sent", "received") if name in counters)
        has_busy = node >= self._workers or not counters or "busy_s" in counters
        if not plain or not has_busy or not isinstance(staleness, list) or len(staleness) != 3:
            raise BadFrame("a message had no possible counters")

    def _are_of_nodes(self, counts: object) -> bool:
        return isinstance(counts, list) and len(counts) == len(self._x) and all(map(_is_number, counts))

    def _check_snapshot(self, node: int, message: Message, vectors: Mapping[str, Tensor]) -> None:
        """Check that the vectors can be evaluated, and the whole be resumed from."""
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
        lengths = {name: length for name, length in lengths.items() if name not in message.get("same", ())}
        spans = [vectors[name] for name in SPANS if name in vectors] if self._limit.spans else []
        if any(name not in vectors or vectors[name].numel() != length for name, length in lengths.items()):
            raise BadFrame("a snapshot had a vector of another length")
        if any(vectors[name].dtype != self._dtype for name in lengths):
            raise BadFrame("a snapshot had a vector of another type")
        if len(spans) == 1 or any(len(s) % 2 or s.dtype != torch.float64 or not s.isfinite().all() for s in spans):
            raise BadFrame("a snapshot had intervals that are none")
        key, steps = message["key"], message["steps"]
        if key.startswith("step:") and (key != f"step:{steps}" or not self._lockstep):
            raise BadFrame("a snapshot message had no possible key")
        if is_worker and key.startswith("checkpoint") and not {"batches", "rng"} <= message["extra"].keys():
            raise BadFrame("a snapshot message had no possible extra")

    def _is_node(self, value: Any) -> bool:
        return type(value) is int and 0 <= value < self._nodes

    def _is_digest(self, value: Any) -> bool:
        """Return whether this is a digest with the parts of this process's own."""
        return (
            isinstance(value, dict)
            and value.keys() == self._parts
            and all(isinstance(part, dict) and all(map(_is_text, part.values())) for part in value.values())
        )

    def _are_digests(self, value: Any) -> bool:
        """Return whether these are digests of vectors that a snapshot may have, in lock-step."""
        return (
            self._lockstep
            and isinstance(value, dict)
            and len(value) <= self._limit.vectors
            and all(name in ("x", "buffers", *self._remembered) or name.startswith("kept.") for name in value)
            and all(map(_is_key, (*value, *value.values())))
        )

    def _is_rank(self, value: Any) -> bool:
        return self._is_node(value) and self._is_worker(value)

    def _is_worker(self, node: int | None) -> bool:
        return node is not None and node < self._workers

    def _is_suspect(self, value: Any) -> bool:
        return value is None or self._is_node(value)

    def _is_extra(self, value: Any) -> bool:
        """Return whether a checkpoint can hold this of a worker, besides steps, counters and vectors."""
        return (
            isinstance(value, dict)
            and not value.keys() & {"steps", "counters", "vectors"}
            and _is_whole(value.get("batches", 0))
            and _is_whole(value.get("optimizer_steps", 0))
            and ("rng" not in value or _has_form_of(value["rng"], self._rng))
        )


def _printable(text: Any) -> Any:
    """Return a text of somebody else's so that it can be shown on a terminal."""
    return for_terminal(text[:PRINTED_LIMIT])[:PRINTED_LIMIT] if isinstance(text, str) else text
