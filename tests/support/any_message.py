"""Rules of a hub for the tests of everything else: any message, and after a first one without vectors, any vectors."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from dsgd.engines.dist.control import Client
from dsgd.engines.dist.frames import Message, VectorLimit

ANY_VECTORS = VectorLimit(vectors=10, numbers=1 << 30, nbytes=1 << 33)


class AnyMessage:
    """Implements `dsgd.engines.dist.control.Rules`."""

    def __init__(self, clients: int = 1000) -> None:
        self.clients = clients

    def check(self, client: Client, message: Message, vectors: Mapping[str, Tensor]) -> None:
        client.limit = ANY_VECTORS
        client.exclusive = message.get("exclusive")
