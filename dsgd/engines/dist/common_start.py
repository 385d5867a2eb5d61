"""Start the processes of several commands from one problem and one vector."""

from __future__ import annotations

from dsgd.engines.dist.control import CoordinatorConnection
from dsgd.engines.dist.frames import NO_VECTORS
from dsgd.engines.dist.job import ProcessJob


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
