"""The phases of a run, from its start to its final status.

At the start all members join, learn each other's addresses, and get ready.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.engines.dist.control import Client, Message
from dsgd.engines.dist.coordinator.membership import Membership
from dsgd.engines.dist.coordinator.snapshots import RunTotals
from dsgd.engines.dist.job import JOIN_TIMEOUT_S, ProcessJob
from dsgd.engines.dist.launch.rendezvous import listen, serve_store
from dsgd.problem.problem import complaint

FIRST_PASS_TIMEOUT_S = 900.0  # limit for all members to get ready: a first pass may compile the model


class StartFailed(Exception):
    """Raised when a run cannot start. culprit: name of the member whose log may explain it."""

    def __init__(self, text: str, culprit: str | None = None) -> None:
        super().__init__(text)
        self.culprit = culprit


class RunStart:
    """Brings the members of a run together. For the listening thread only. send: sends to clients."""

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
        """Note a process that has announced its role."""
        self._last_came = time.monotonic()
        self._parents_to_come -= message["role"] == "agent"
        if message.get("gpus"):
            self._on_gpus.add(message["node"])

    def vectors_for(self, message: Message) -> dict[str, Tensor] | None:
        """Return the initial vectors for the parent of another command; None if its own are the same. Raises
        StartFailed if its problem differs."""
        job = self._job
        if differs := complaint(message["digest"], job.digest, "rank 0"):
            raise StartFailed(f"rank {message['rank']} has {differs}")
        if message["hash"] == job.start_hash:
            return None
        return {"x": job.problem.start, "buffers": job.problem.start_buffers}

    def advance(self, now: float) -> bool:
        """Send all addresses when all members have come; returns whether all are ready.

        Raises StartFailed for members that do not join within the time limit after the last one. A member that has
        joined may take long to get ready, as long as it is not silent; the caller checks silence."""
        members, timeout_s = self._members.members, self._job.timeout_s
        late = [member.name for member in members if not member.joined or None in (member.client, member.snapshots)]
        if self._all_came is None and not late:
            self._all_came = now
            self._serve_store()
            addresses = [member.address for member in members]
            port = None if self._store is None else self._store.port
            for member in members:  # includes the state to resume from
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
        """Serve a store if the workers' process groups need one: on GPUs, and with torch's collectives."""
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


class RunPhase:
    """Keeps the phase of a run, its training clock, and its end. `conclude`, `settle` and read-only members are for the
    thread that evaluates marks, the others for the listening thread.

    name: starting, training, ending (the last mark is requested), over. status: running, then completed | diverged |
    interrupted | failed. error: one line, for failed. verdict: status of a run that a mark ends."""

    def __init__(self, start_s: float) -> None:
        """start_s: time on the training clock at the start of this process."""
        self.name = "starting"
        self.status, self.error = "running", ""
        self.verdict: str | None = None
        self._start_s = start_s
        self._time_origin = 0.0  # time.monotonic() at 0 s of the training clock
        self._end_s: float | None = None
        self._ends_as = "completed"  # or diverged, with the mark at the end
        self._ended_with: RunTotals | None = None  # the last mark, or the checkpoint that ends the run
        self._concluded_with: RunTotals | None = None  # the mark of the verdict

    @property
    def is_over(self) -> bool:
        """Return whether the status is known, so that no member is needed any more."""
        return self.name == "over"

    @property
    def time_s(self) -> float:
        """Return the seconds on the training clock; at the end, of the whole run."""
        if self._end_s is not None:
            return self._end_s
        return time.monotonic() - self._time_origin if self.name in ("training", "ending") else self._start_s

    @property
    def totals(self) -> RunTotals | None:
        """Return the totals at the mark or checkpoint that ended the run, or None."""
        if self.status == self.verdict and self._concluded_with is not None:
            return self._concluded_with
        return self._ended_with if self.status != "failed" else None

    def train(self) -> None:
        """Start the training clock."""
        self.name = "training"
        self._time_origin = time.monotonic() - self._start_s

    def finish_training(self, time_s: float, ends_as: str = "completed") -> None:
        """Stop the training clock: the run ends with the mark at this time, and with this status."""
        self.name, self._end_s, self._ends_as = "ending", time_s, ends_as

    def conclude(self, status: str, totals: RunTotals) -> None:
        """End the run, soon, with the status that a mark has shown."""
        self._concluded_with = totals
        self.verdict = status

    def end_as_concluded(self) -> bool:
        """End the run if a mark has decided its status. Returns whether it did."""
        if self.verdict is None or self._concluded_with is None:
            return False
        self._end_s = self._concluded_with.counters.time_s
        self.end(self.verdict)
        return True

    def end_with(self, totals: RunTotals, status: str | None = None) -> None:
        """End the run with a mark or a checkpoint. status: final status; None: the status at the end of training."""
        self._ended_with = totals
        self.end(self._ends_as if status is None else status)

    def end(self, status: str, error: str = "") -> None:
        """End the run, unless it is over."""
        if not self.is_over:
            self._end_s = self.time_s
            self.status, self.error, self.name = status, error, "over"

    def settle(self) -> None:
        """Accept the verdict of a mark before the end that was evaluated after it."""
        if self.status in ("completed", "diverged") and self.verdict is not None:
            self.status = self.verdict
