"""Processes started by torchrun or srun agree on the run first: rank 0 offers a configuration, the others accept, and
get the run's token.

They meet in a store without authentication. Under torchrun it belongs to torchrun, which listens on every interface, so
strangers can read it. Therefore the store never contains the token, its entries are deleted when all have read them,
and every value read is checked.

A reader publishes a public key, and the token is sealed for it in a sealed box of libsodium (X25519,
XSalsa20-Poly1305). That protects against readers. An attacker who can also change the store can impersonate one side:
nothing authenticates a public key.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct, ValidationError, convert
from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox
from torch.distributed import DistNetworkError, DistStoreError, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.engines.dist.frames import printable
from dsgd.engines.dist.job import JOIN_TIMEOUT_S
from dsgd.engines.dist.launch.rendezvous import (
    STORE_POLL_S,
    NoMeeting,
    listen,
    master_of,
    new_token,
    open_store,
    store_address,
)
from dsgd.host.launcher import Launch
from dsgd.record.writer import code_version
from dsgd.runner.configuration import RunConfig
from dsgd.runner.resume import compare
from dsgd.runner.values import ConfigError, with_numbers

VERDICT_MARGIN_S = 3.0  # other ranks wait this much longer than rank 0, which knows best which rank is missing
VALUE_LIMIT = 1 << 20  # bytes of a value in the store
OBJECTION_LIMIT = 2000  # characters
T = TypeVar("T")


class NotSealed(ValueError):
    """Raised for an invalid public key, and for a sealed secret that was changed or is for another recipient."""


def public_key(private: PrivateKey) -> str:
    """Return the public key of a private key, in hexadecimal."""
    return bytes(private.public_key).hex()


def seal(secret: bytes, public: str, context: str) -> str:
    """Seal a secret for the owner of a public key; returns hexadecimal. Raises NotSealed.

    context: purpose of the secret; `unseal` must name the same."""
    if len(public) != 2 * PublicKey.SIZE:
        raise NotSealed(f"a public key must have {2 * PublicKey.SIZE} digits, got {len(public)}")
    try:
        box = SealedBox(PublicKey(bytes.fromhex(public)))
    except ValueError as error:
        raise NotSealed("a public key must be hexadecimal") from error
    try:
        return box.encrypt(_digest(context) + secret).hex()
    except CryptoError as error:
        raise NotSealed("a public key must be of the large order") from error


def unseal(sealed: str, private: PrivateKey, context: str) -> bytes:
    """Return the secret that was sealed for this side. Raises NotSealed."""
    try:
        content = bytes.fromhex(sealed)
    except ValueError as error:
        raise NotSealed("a sealed secret must be hexadecimal") from error
    digest = _digest(context)
    try:
        opened = SealedBox(private).decrypt(content)
    except CryptoError:
        opened = b""
    if not opened.startswith(digest):
        raise NotSealed("a sealed secret has been changed, or is for somebody else")
    return opened[len(digest) :]


def _digest(context: str) -> bytes:
    return hashlib.sha256(context.encode()).digest()


@dataclass(frozen=True)
class Meeting:
    """The run that rank 0 proposes to the others. host, port: address of its coordinator. folder: folder of the record.
    config: resolved configuration. version: version of the code."""

    host: str
    port: Annotated[int, Meta(gt=0, lt=1 << 16)]
    folder: str
    config: Mapping[str, Any]
    version: str

    def __post_init__(self) -> None:
        IPv4Address(self.host)


class MeetingAnswer(Struct, frozen=True):
    """The answer of a rank > 0 to the offer. public: public key that seals the token."""

    objection: str
    public: str


class MeetingVerdict(Struct, frozen=True):
    """The result of all answers: an objection, or the token, sealed for each rank."""

    objection: str
    sealed: dict[str, Any]  # `unseal` checks its own entry


def meet(
    launch: Launch, offer: Callable[[], Meeting], object_to: Callable[[Meeting], str | None]
) -> tuple[Meeting, str]:
    """Agree on the run that rank 0 offers: all ranks get the offer and may object; returns when all have accepted.

    offer: called in rank 0. object_to: called in the others, returns an objection or None. Returns the offer and the
    run's token, which the store never contains unsealed. Raises NoMeeting with the same objection in every rank, or
    after at most 30 seconds.

    Every rank deletes its entries from the store, also if the meeting fails."""
    deadline = time.monotonic() + JOIN_TIMEOUT_S
    try:
        store = open_store(launch, deadline)
        if launch.rank == 0:
            return _invite(launch, store, offer(), deadline)
        return _attend(launch, store, object_to, deadline)
    except (DistNetworkError, DistStoreError) as error:
        raise NoMeeting(f"rank {launch.rank}: cannot be reached: {store_address(launch)}") from error


def _invite(launch: Launch, store: TCPStore, meeting: Meeting, deadline: float) -> tuple[Meeting, str]:
    """Do rank 0's part: publish the offer, read all answers, and give each rank the token, unless one objects."""
    offer, verdict = _key(launch), _key(launch, "verdict")
    answers = {rank: _key(launch, rank) for rank in range(1, launch.nodes)}
    token, text = new_token(), json.dumps(asdict(meeting))
    try:
        store.set(offer, text)
        late = _missing(store, list(answers.values()), deadline)
        objections: list[str] = []
        sealed: dict[str, str] = {}
        for rank, answer in answers.items():
            if answer in late:
                continue
            try:
                _, reply = _read(launch, store, answer, MeetingAnswer)
                objections.append(printable(reply.objection, OBJECTION_LIMIT))
                sealed[str(rank)] = seal(bytes.fromhex(token), reply.public, _context(launch, rank, text))
            except (NoMeeting, NotSealed) as error:
                objections.append(str(error) if isinstance(error, NoMeeting) else _foreign(launch, answer, error))
        if late:
            names = ", ".join(answer.rpartition("/")[2] for answer in late)
            objections.append(f"rank {names} did not come within {JOIN_TIMEOUT_S:g} s to {store_address(launch)}")
        objection = next(filter(None, objections), "")
        store.set(verdict, json.dumps({"objection": objection, "sealed": {} if objection else sealed}))
        leave_s = VERDICT_MARGIN_S if objection else JOIN_TIMEOUT_S  # one of them may have been stopped for a while
        _wait_until_gone(store, [answer for answer in answers.values() if answer not in late], leave_s)
    finally:
        _delete(store, [offer, verdict, *answers.values()])
    if objection:
        raise NoMeeting(objection)
    return meeting, token


def _attend(
    launch: Launch, store: TCPStore, object_to: Callable[[Meeting], str | None], deadline: float
) -> tuple[Meeting, str]:
    """Do the part of a rank > 0: accept the offer or object, and open the token that rank 0 has sealed for it."""
    offer, verdict, answer = _key(launch), _key(launch, "verdict"), _key(launch, launch.rank)
    if _missing(store, [offer], deadline):
        raise NoMeeting(
            f"rank {launch.rank}: rank 0 did not come within {JOIN_TIMEOUT_S:g} s to {store_address(launch)}"
        )
    text, meeting = _read(launch, store, offer, Meeting)
    private = PrivateKey.generate()
    try:
        objection = object_to(meeting)
        reply = "" if objection is None else f"rank {launch.rank}: {objection}"
        store.set(answer, json.dumps({"objection": reply, "public": public_key(private)}))
        if _missing(store, [verdict], deadline + VERDICT_MARGIN_S):
            raise NoMeeting(f"rank {launch.rank}: rank 0 no longer answers at {store_address(launch)}")
        _, outcome = _read(launch, store, verdict, MeetingVerdict)
        if outcome.objection:
            raise NoMeeting(printable(outcome.objection, OBJECTION_LIMIT))
        token = unseal(str(outcome.sealed.get(str(launch.rank))), private, _context(launch, launch.rank, text))
    except NotSealed as error:
        raise NoMeeting(_foreign(launch, verdict, error)) from error
    finally:
        _delete(store, [answer])
    return meeting, token.hex()


def _key(launch: Launch, *parts: object) -> str:
    """Return the key of the offer; behind it a rank has its answer, and all have the verdict."""
    return "/".join(map(str, ("dsgd", launch.job, *parts)))


def _context(launch: Launch, rank: int, offer: str) -> str:
    """Return the purpose of a sealed token: this rank of this job, after exactly this offer."""
    return f"{_key(launch, rank)} {hashlib.sha256(offer.encode()).hexdigest()}"


def _read(launch: Launch, store: TCPStore, key: str, expected: type[T]) -> tuple[str, T]:
    """Return the text of a value, a JSON object, and the object. Any process may have written it: raises NoMeeting for
    other values."""
    try:
        content = store.get(key)
        if len(content) > VALUE_LIMIT:
            raise ValueError(f"{len(content)} bytes")
        text = content.decode()
        return text, convert(json.loads(text), expected)
    except (ValueError, RecursionError, ValidationError) as error:
        raise NoMeeting(_foreign(launch, key, "it cannot be read")) from error


def _foreign(launch: Launch, key: str, why: object) -> str:
    return f"rank {launch.rank}: {key} in the store at {store_address(launch)} is not of this run: {why}"


def _missing(store: TCPStore, keys: Sequence[str], deadline: float) -> list[str]:
    """Wait for keys; returns those missing at the deadline. The store's own wait would print to the terminal."""
    while (missing := [key for key in keys if not store.check([key])]) and time.monotonic() <= deadline:
        time.sleep(STORE_POLL_S)
    return missing


def _wait_until_gone(store: TCPStore, keys: Sequence[str], limit_s: float) -> None:
    """Wait until no rank needs the verdict any more: a rank that has read it deletes its own answer."""
    deadline = time.monotonic() + limit_s
    while any(store.check([key]) for key in keys) and time.monotonic() <= deadline:
        time.sleep(STORE_POLL_S)


def _delete(store: TCPStore, keys: Sequence[str]) -> None:
    with contextlib.suppress(DistNetworkError, DistStoreError):  # the store is gone, and its entries with it
        for key in keys:
            store.delete_key(key)


@dataclass(frozen=True)
class Joined:
    """This process's part in the meeting. token: token of the run, in hexadecimal. listener: the coordinator's
    listener, in rank 0."""

    rank: int
    meeting: Meeting
    token: str
    listener: socket.socket | None


def join(where: Launch, config: RunConfig, folder: Path) -> Joined:
    """Meet the other processes of this launch.

    folder: folder of the record, if this is rank 0. Raises ConfigError, in all ranks, if one does not join, or has
    another configuration or other code than rank 0."""
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
        except (ValueError, RecursionError):  # the store's contents are not trusted
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
