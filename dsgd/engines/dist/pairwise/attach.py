"""Agree to read large vectors where they are: in the memory of the other process, one copy where a socket makes two.

Each side tells its process number and where it has put a secret, and the other reads that: so both know that they are
on one host, may read, and have the right process. From then on a large vector is described by its address. Its owner
keeps it as it is until the reader has said that it has read it, and says so in turn; a reader that does not hear it
drops what it has read. So what is delivered is whole, even if the owner gives up or dies in between.
"""

from __future__ import annotations

import os

from dsgd.engines.dist.pairwise.frame_socket import FrameSocket, LocalNode
from dsgd.engines.dist.pairwise.process_memory import ProcessMemory, Secret
from dsgd.engines.dist.pairwise.wire import Frame, Kind, PlaneSettings, ProtocolViolation, Status


async def attach(link: FrameSocket, settings: PlaneSettings, patience_s: float) -> None:
    """Find out whether vectors can be read in place, on a connection without requests as yet."""
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
    """Return the memory of whoever has made an offer, if this process can read it."""
    memory = ProcessMemory(offer.steps)
    return memory if memory.shows(offer.name, offer.sequence) else None
