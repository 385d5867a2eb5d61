"""The start of a run as its coordinator sees it: all members come, learn each other's addresses, and get ready."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.engines.dist.control import Client, Message
from dsgd.engines.dist.coordinator.membership import Membership
from dsgd.engines.dist.job import JOIN_TIMEOUT_S, ProcessJob
from dsgd.engines.dist.launch.rendezvous import listen, serve_store
from dsgd.problem.problem_digest import complaint

FIRST_PASS_TIMEOUT_S = 900.0  # for all to be ready, of whom none is silent: a first pass may compile the model


class StartFailed(Exception):
    """Raised when a run cannot start. culprit: name of the member whose log may tell more."""

    def __init__(self, text: str, culprit: str | None = None) -> None:
        super().__init__(text)
        self.culprit = culprit


class RunStart:
    """Brings the members of a run together. For the listening thread only. send: to clients."""

    def __init__(
        self, job: ProcessJob, members: Membership, send: Callable[[Iterable[Client | None], Message], None]
    ) -> None:
        self._job = job
        self._members = members
        self._send = send
        self._all_came: float | None = None  # by time.monotonic()
        self._last_came = time.monotonic()
        self._parents_to_come = job.experiment.nodes - len(job.devices)  # of other commands, one for each worker
        self._on_gpus: set[int] = set()  # workers
        self._store: TCPStore | None = None

    def came(self, message: Message) -> None:
        """Take note of a process that has said what it is."""
        self._last_came = time.monotonic()
        self._parents_to_come -= message["role"] == "agent"
        if message.get("gpus"):
            self._on_gpus.add(message["node"])

    def vectors_for(self, message: Message) -> dict[str, Tensor] | None:
        """Return the vectors to start from for the parent of another command; None where its own are the same. Raises
        StartFailed if its problem is another one."""
        job = self._job
        if differs := complaint(message["digest"], job.digest, "rank 0"):
            raise StartFailed(f"rank {message['rank']} has {differs}")
        if message["hash"] == job.start_hash:
            return None
        return {"x": job.problem.start, "buffers": job.problem.start_buffers}

    def advance(self, now: float) -> bool:
        """Send all addresses when all members have come; returns whether all are ready.

        Raises StartFailed for who does not come in time since somebody came last. Whoever has come may take long to get
        ready, as long as it is not silent, which is not looked at here."""
        members, timeout_s = self._members.members, self._job.limits.timeout_s
        late = [member.name for member in members if not (member.is_connected and member.joined)]
        if self._all_came is None and not late:
            self._all_came = now
            self._serve_store()
            addresses = [member.address for member in members]
            port = None if self._store is None else self._store.port
            for member in members:  # also what it goes on from
                message = {"kind": "addresses", "addresses": addresses, "store": port}
                self._send([member.client], {**message, "steps": member.steps, "counters": member.counters})
        elif self._all_came is None:
            limit_s = max(timeout_s, JOIN_TIMEOUT_S * (self._parents_to_come > 0))
            if now - self._last_came > limit_s:
                raise StartFailed(f"{', '.join(late)} did not come within {limit_s:g} s", late[0])
        else:
            late = [member.name for member in members if not member.ready]
            if late and now - self._all_came > max(timeout_s, FIRST_PASS_TIMEOUT_S):
                raise StartFailed(f"{', '.join(late)} did not get ready within {now - self._all_came:.0f} s", late[0])
            return not late
        return False

    def _serve_store(self) -> None:
        """Serve a store where the workers' process groups need one to meet: on GPUs, and with torch's collectives."""
        experiment = self._job.experiment
        uses_groups = self._on_gpus or self._job.collectives == "torch"
        if not (experiment.algo.lockstep and experiment.nodes > 1 and uses_groups):
            return
        if self._on_gpus and (on_cpu := set(range(experiment.nodes)) - self._on_gpus):
            raise StartFailed(
                f"engine.gpus_per_node must be set where only some workers find GPUs: worker {min(self._on_gpus)} has, "
                f"worker {min(on_cpu)} has none"
            )
        self._store = serve_store(listen(self._job.coordinator[0]))
