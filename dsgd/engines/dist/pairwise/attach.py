"""Agree to read large vectors in the memory of the other process: one copy instead of a socket's two.

Each side sends its process number and the address of a secret, and the other reads the secret. So both know that they
are on one host, may read, and have the right process. From then on, a message has the address of a large vector. The
owner does not change the vector until the reader reports the end of reading, and then confirms that. A reader without
the confirmation discards the vector. So delivered vectors are complete, even if the owner gives up or dies meanwhile.
"""

from __future__ import annotations

import os

from dsgd.engines.dist.pairwise.frame_socket import FrameSocket, LocalNode
from dsgd.engines.dist.pairwise.process_memory import ProcessMemory, Secret
from dsgd.engines.dist.pairwise.wire import Frame, Kind, PlaneSettings, ProtocolViolation, Status


async def attach(link: FrameSocket, settings: PlaneSettings, patience_s: float) -> None:
    """Find out whether vectors can be read in place, on a connection before its first request."""
    secret = Secret()
    await link.send(_offer(secret, can=True), None, patience_s)
    answer = await link.receive(settings, patience_s)
    if answer.kind != Kind.ATTACH:
        raise ProtocolViolation(f"{answer.kind.name} to ATTACH")
    memory = _shown(answer) if answer.status == Status.OK else None
    await link.send(Frame(Kind.ATTACH, Status.NOTHING if memory is None else Status.OK), None, patience_s)
    link.memory = memory


async def answer_attach(link: FrameSocket, offer: Frame, node: LocalNode) -> None:
    """Answer a client that would have vectors read in place."""
    secret, memory = Secret(), _shown(offer) if node.attaches else None
    await link.send(_offer(secret, can=memory is not None), None, node.timeout_s)
    last = await link.receive(node.settings, node.timeout_s)
    if last.kind != Kind.ATTACH or link.memory is not None:
        raise ProtocolViolation(f"{last.kind.name} after ATTACH")
    link.memory = memory if last.status == Status.OK else None


def _offer(secret: Secret, can: bool) -> Frame:
    status = Status.OK if can else Status.NOTHING
    return Frame(Kind.ATTACH, status, os.getpid(), secret.address, secret.text)


def _shown(offer: Frame) -> ProcessMemory | None:
    """Return the memory of the process that has made an offer, if this process can read it."""
    memory = ProcessMemory(offer.steps)
    return memory if memory.shows(offer.name, offer.sequence) else None
