"""Whether all who take part in a run, and who goes on with it, have the same data and the same model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsgd.data import DataLost
from dsgd.data.digest import Digest
from dsgd.problem.problem import Problem
from dsgd.problem.problem_digest import complaint, problem_digest
from dsgd.processes.control import CoordinatorConnection
from dsgd.processes.frames import NO_VECTORS
from dsgd.processes.job import ProcessJob
from dsgd.run.resume import Checkpoint
from dsgd.run.values import ConfigError

DIGEST = "digest"  # in checkpoints


def checked_digest(problem: Problem, checkpoint: Checkpoint | None) -> Digest:
    """Return the digest of a problem. Raises ConfigError if that of its checkpoint is another one."""
    try:
        digest = problem_digest(problem)
    except DataLost as error:
        raise ConfigError(str(error)) from error
    stored: Any = None if checkpoint is None else checkpoint.header.get(DIGEST)
    if isinstance(stored, Mapping):  # earlier versions stored none
        known = {part: hashes for part, hashes in stored.items() if isinstance(hashes, dict)}
        if differs := complaint(digest, known):
            raise ConfigError(f"resume must find the data and the model that the run began with, got {differs}")
    return digest


def has_common_start(line: CoordinatorConnection, job: ProcessJob, rank: int) -> bool:
    """Have the coordinator compare this command's problem with its own, and take over the vectors that training starts
    from. Returns whether the run goes on. Raises CoordinatorGone."""
    line.send({"kind": "start", "rank": rank, "digest": job.digest, "hash": job.start_hash})
    line.limit = job.model_limit
    while True:
        message, vectors = line.receive_with_vectors()
        if message["kind"] == "exit":
            return False
        if message["kind"] == "start":
            break
    line.limit = NO_VECTORS
    for vector, name in ((job.problem.start, "x"), (job.problem.start_buffers, "buffers")):
        if name in vectors:
            vector.copy_(vectors[name])
    return True
