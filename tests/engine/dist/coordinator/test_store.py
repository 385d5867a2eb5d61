"""A store is served where workers on GPUs need one, to meet for NCCL, and nowhere else."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from dsgd.engines.dist.control import CoordinatorConnection, Hub, Message
from dsgd.engines.dist.coordinator.messages import MessageRules
from dsgd.engines.dist.coordinator.monitor import RunMonitor
from dsgd.engines.dist.job import ProcessJob
from dsgd.problem.problem import build_problem
from tests.support.cases import prepared
from tests.support.proc import LOOPBACK, listening, open_files

TOKEN = bytes(32)
DEADLINE_S = 60.0


def told(gpus: Sequence[bool], algo: str) -> tuple[Message, RunMonitor]:
    """What the coordinator tells worker 0 when all have come, some of which may have GPUs. A store must be on this
    machine's own address, as the coordinator is."""
    experiment = prepared("experiment=quadratic", f"algo={algo}", f"nodes={len(gpus)}")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        job = ProcessJob(experiment, build_problem(experiment), address, TOKEN, DEADLINE_S, 1.0, 1, {0: ("cpu",)})
        monitor = RunMonitor(job, Hub(listener, TOKEN, print, MessageRules(job)), print, None)
        monitor.listen()
        monitor.begin()
        lines = [CoordinatorConnection(address, TOKEN, DEADLINE_S) for _ in gpus]
        others = [CoordinatorConnection(address, TOKEN, DEADLINE_S) for _ in gpus]
        for rank, line in enumerate(others):
            line.send({"kind": "hello", "role": "snapshots", "node": rank})
        for rank, (line, has) in enumerate(zip(lines, gpus, strict=True)):
            line.send({"kind": "hello", "role": "node", "node": rank, "host": "127.0.0.1", "port": 1, "gpus": has})
        while (message := lines[0].receive())["kind"] == "heartbeat":
            pass
        port = message.get("store")
        assert port is None or {host for host, bound in ports() if bound == port} == {LOOPBACK}
        monitor.close("failed")
        for line in (*lines, *others):
            line.socket.close()
    return message, monitor


def ports() -> set[tuple[str, int]]:
    """The addresses that this process listens to."""
    bound = listening()
    return {bound[file] for file in open_files(os.getpid()) if file in bound}


def test_a_store_is_where_workers_on_gpus_meet_in_lock_step() -> None:
    for gpus, algo, is_needed in (
        ([True, True], "sync", True),
        ([False, False], "sync", False),
        ([True], "gossip", False),
    ):
        message, _ = told(gpus, algo)
        assert (message["kind"], message["store"] is not None) == ("addresses", is_needed)


def test_a_mixture_is_an_error_that_names_one_of_each() -> None:
    message, monitor = told([False, True, False], "sync")
    assert message["kind"] == "exit"
    assert monitor.phase.status == "failed"
    assert monitor.phase.error == (
        "engine.gpus_per_node must be set where only some workers find GPUs: worker 1 has, worker 0 has none"
    )
