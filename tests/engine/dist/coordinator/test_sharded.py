"""Evaluation in parts, by processes beside the workers: the same numbers, whoever is there to find them."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from dsgd.engines.dist.control import CoordinatorConnection, Hub, HubEvent
from dsgd.engines.dist.coordinator.messages import MessageRules
from dsgd.engines.dist.coordinator.monitor import RunMonitor
from dsgd.engines.dist.coordinator.sharded import EvaluationPart
from dsgd.engines.dist.job import Limits, ProcessJob
from dsgd.host.resources import cores
from dsgd.problem.problem import build_problem
from tests.engine.dist.launch.test_torchrun import free_port, static
from tests.support.any_message import ANY_VECTORS, AnyMessage
from tests.support.cases import prepared
from tests.support.long import long_but
from tests.support.prefork import Prefork, Run
from tests.support.watched_run import WatchedRun

TOKEN = bytes(32)
DEADLINE_S = 60.0
EXACT = ("samples", "test_accuracy", "test_top5", "consensus_distance", "pairwise_distance_median", "discrepancy")
EXACT += ("worker_accuracy_min", "worker_accuracy_mean", "worker_accuracy_max")
DIGITS = (
    "engine=dist",
    "precision=fp64",
    "data=digits",
    "batch_size=8",
    "budget.epochs=null",
    "eval.every_epochs=null",
    "eval.workers=all",
)
SLOW_EVALUATION = (
    *DIGITS,
    "model=mlp",
    "data._target_=tests.support.slow_evaluation.SlowEvaluation",
    "eval.sharded=true",
)
FAULTS = (*SLOW_EVALUATION, "nodes=3", "engine.patience_s=0.5")
FEW = ("algo=sync", "budget.steps=6", "eval.every_steps=2")


def exact(marks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What must not depend on how samples were grouped."""
    return [{field: mark[field] for field in EXACT} for mark in marks]


def losses(marks: list[dict[str, Any]]) -> list[float]:
    return [mark[field] for mark in marks for field in ("train_loss", "test_loss")]


def parts(run: Run) -> dict[str, list[tuple[str, int, int]]]:
    """The parts that each evaluator says it has evaluated: mark, i and k."""
    found = {}
    for log in sorted((run.folder / "logs").glob("evaluator_*.log")):
        lines = re.findall(r"^(\S+): part (\d+) of (\d+), \d+ samples", log.read_text(), re.MULTILINE)
        found[log.stem] = [(mark, int(i), int(k)) for mark, i, k in lines]
    return found


def started(prefork: Prefork, folder: Path, *options: str) -> WatchedRun:
    return WatchedRun(prefork.start(folder, *options), set(os.listdir("/dev/shm")))


def halfway(watched: WatchedRun, marks: int = 0) -> dict[str, int]:
    """Wait until so many marks are there, and parts of a further one; the processes then."""
    run = watched.run

    def begun() -> bool:
        watched.observe()
        of = {mark for found in parts(run).values() for mark, _, _ in found}
        return len(of) > len(run.marks) >= marks

    run.until(begun)
    return watched.observe()


# What is found


@pytest.mark.parametrize(
    "options",
    [
        ("algo=sync", "nodes=3", "model=resnet8"),
        ("algo=dpsgd", "nodes=3", "model=resnet8", "eval.batch_norm=recalibrate", "eval.train_samples=100"),
        ("algo=delayfree", "nodes=4", "model=mlp", "eval.train_samples=3"),  # fewer samples than workers
    ],
    ids=lambda options: options[0],
)
def test_parts_come_to_the_same_as_the_whole(prefork: Prefork, tmp_path: Path, options: tuple[str, ...]) -> None:
    runs = {
        sharded: prefork.run(
            tmp_path / sharded, *DIGITS, *options, "budget.steps=8", "eval.every_steps=4", f"eval.sharded={sharded}"
        )
        for sharded in ("true", "false")
    }
    marks = {sharded: run.marks for sharded, run in runs.items()}
    assert len(marks["true"]) == 3, runs["true"].err
    assert exact(marks["true"]) == exact(marks["false"])
    assert losses(marks["true"]) == pytest.approx(losses(marks["false"]), rel=1e-12)
    assert parts(runs["false"]) == {}
    evaluated = sorted(part for found in parts(runs["true"]).values() for part in found)
    assert evaluated, "nobody but the coordinator has evaluated anything"
    assert len({mark for mark, _, _ in evaluated}) == 3


@pytest.mark.long
def test_image_files_are_evaluated_in_parts_by_default(prefork: Prefork, tmp_path: Path) -> None:
    options = ("engine=dist", "algo=sync", "nodes=2", "batch_size=6", "precision=fp64", "model=import")
    options += ("model.target=tests.system.cli.test_image_runs.small_net", "data=imagenet-like", "data.classes=7")
    options += ("data.samples_per_class=3", "data.test_per_class=3", "data.side=64", "data.workers=1")
    options += (
        f"data.path={tmp_path / 'images'}",
        "budget.epochs=1",
        "model.target=tests.engine.dist.coordinator.test_sharded.seven",
    )
    runs = [
        prefork.run(tmp_path / f"run{sharded}", *options, f"eval.sharded={sharded}") for sharded in ("null", "false")
    ]
    by_default, whole = (run.marks for run in runs)
    assert exact(by_default) == exact(whole), runs[0].err
    assert losses(by_default) == pytest.approx(losses(whole), rel=1e-12)
    assert None not in [mark["test_top5"] for mark in by_default]
    assert sum(map(len, parts(runs[0]).values())) > 0
    assert parts(runs[1]) == {}


def seven() -> torch.nn.Module:
    """A model of pictures in seven classes."""
    layers = torch.nn
    return layers.Sequential(layers.AvgPool2d(32), layers.Flatten(), layers.Linear(147, 7))


def test_every_evaluator_has_its_share_of_a_mark(prefork: Prefork, tmp_path: Path) -> None:
    run = prefork.run(
        tmp_path / "run", *SLOW_EVALUATION, "algo=sync", "nodes=4", "budget.steps=3", "eval.every_steps=1"
    )
    assert run.summary["status"] == "completed", run.err
    found = parts(run)
    assert len(found) == min(4, cores())
    assert all(found.values())
    every = [part for theirs in found.values() for part in theirs]
    # everybody's own model, which is the same, and the output model: each in as many parts as there are workers
    assert sorted(every) == sorted([(mark, i, 4) for mark in marks(every) for i in (1, 2, 3, 4)] * 2)
    assert marks(every) == {"checkpoint:0", "step:1", "step:2", "last"}


def test_own_models_that_differ_are_evaluated_as_a_whole(prefork: Prefork, tmp_path: Path) -> None:
    # in lock-step, so that they do differ: a free-running worker that gets no processor is where it began
    run = prefork.run(tmp_path / "run", *SLOW_EVALUATION, "algo=dpsgd", "nodes=3", "budget.steps=4")
    every = [part for theirs in parts(run).values() for part in theirs]
    of_last = sorted((i, k) for mark, i, k in every if mark == "last")
    assert of_last == [*[(1, 1)] * 3, (1, 3), (2, 3), (3, 3)], run.err


def marks(of: list[tuple[str, int, int]]) -> set[str]:
    return {mark for mark, _, _ in of}


def test_every_command_of_a_launcher_evaluates(prefork: Prefork, tmp_path: Path) -> None:
    """Two commands, as torchrun starts them; the record and the logs are where rank 0 was told to put them."""
    port = free_port()
    options = (*SLOW_EVALUATION, "algo=sync", "nodes=2", "budget.steps=4", "eval.every_steps=1")
    runs = [prefork.start(tmp_path / f"rank{rank}", *options, **static(rank, port)) for rank in (0, 1)]
    assert [run.wait() for run in runs] == [0, 0], [run.err for run in runs]
    assert len(runs[0].marks) == 5
    found = parts(runs[0])
    assert list(found) == ["evaluator_0", "evaluator_1"]
    assert all(found.values())


# Who is there to find it


@pytest.fixture(scope="module")
def undisturbed(prefork_server: Prefork, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The marks of the run of `FAULTS` and `FEW` to which nothing happens."""
    run = prefork_server.run(tmp_path_factory.mktemp("undisturbed") / "run", *FAULTS, *FEW, "+data.pause_s=0")
    assert run.summary["status"] == "completed", run.err
    return run.marks


@pytest.mark.long
@pytest.mark.parametrize("number", long_but([signal.SIGSTOP], [signal.SIGKILL, signal.SIGSTOP]))
def test_a_mark_is_the_same_without_one_of_the_evaluators(
    prefork: Prefork, tmp_path: Path, undisturbed: list[dict[str, Any]], number: signal.Signals
) -> None:
    watched = started(prefork, tmp_path / "run", *FAULTS, *FEW, "engine.timeout_s=4")
    os.kill(halfway(watched)["evaluator 0"], number)
    watched.assert_ends("completed", 0)
    how = "has died; its part is given to others" if number == signal.SIGKILL else "has been silent for 4 s"
    assert sum(how in line for line in watched.lines_about("evaluator 0")) == 1
    assert (exact(watched.run.marks), losses(watched.run.marks)) == (exact(undisturbed), losses(undisturbed))


@pytest.mark.long
def test_the_coordinator_evaluates_where_no_evaluator_is_left(
    prefork: Prefork, tmp_path: Path, undisturbed: list[dict[str, Any]]
) -> None:
    watched = started(prefork, tmp_path / "run", *FAULTS, *FEW)
    for name, pid in halfway(watched).items():
        if name.startswith("evaluator"):
            os.kill(pid, signal.SIGKILL)
    watched.assert_ends("completed", 0)
    assert (exact(watched.run.marks), losses(watched.run.marks)) == (exact(undisturbed), losses(undisturbed))


@pytest.mark.long
def test_a_worker_of_gossip_that_dies_during_an_evaluation_leaves_the_others_to_go_on(
    prefork: Prefork, tmp_path: Path
) -> None:
    watched = started(prefork, tmp_path / "run", *FAULTS, "algo=gossip", "budget.time_s=12", "eval.every_time_s=1")
    os.kill(halfway(watched, 1)["worker 1"], signal.SIGKILL)
    watched.assert_ends("completed", 0)
    assert watched.run.summary["workers_lost"] == 1
    times = [mark["time_s"] for mark in watched.run.marks]
    assert times == sorted(times)
    assert times[-1] == 12
    assert None not in [mark["worker_accuracy_mean"] for mark in watched.run.marks]


def test_a_worker_in_lock_step_that_dies_during_an_evaluation_ends_the_run(prefork: Prefork, tmp_path: Path) -> None:
    watched = started(prefork, tmp_path / "run", *FAULTS, "algo=sync", "budget.steps=1000000", "eval.every_time_s=1")
    os.kill(halfway(watched, 2)["worker 1"], signal.SIGKILL)
    watched.assert_ends("failed", 1)
    assert "sync cannot go on without it" in watched.run.summary["error"]


def test_an_interrupt_during_an_evaluation_ends_the_run_with_a_checkpoint(prefork: Prefork, tmp_path: Path) -> None:
    watched = started(prefork, tmp_path / "run", *FAULTS, "algo=gossip", "budget.steps=1000000", "+data.pause_s=0.5")
    halfway(watched)
    os.kill(watched.run.pid, signal.SIGINT)
    watched.assert_ends("interrupted", 130)
    assert list(watched.run.folder.glob("*.pt"))


def test_an_evaluation_that_nobody_can_do_ends_the_run_and_is_reported(prefork: Prefork, tmp_path: Path) -> None:
    options = ("algo=sync", "budget.steps=1000000", "data._target_=tests.support.slow_evaluation.FailingEvaluation")
    watched = started(prefork, tmp_path / "run", *FAULTS, *options)
    watched.assert_ends("failed", 1)
    assert watched.run.summary["error"] == "the evaluation failed: RuntimeError: no such loss"
    assert "evaluator 0 cannot evaluate: RuntimeError: no such loss; its part is given to others" in watched.run.err


def test_vectors_come_to_a_client_bit_for_bit_while_others_are_heard() -> None:
    """Larger than what the kernel takes at once."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    hub = Hub(listener, TOKEN, print, AnyMessage())
    vectors = {"x": torch.randn(4_000_000, dtype=torch.float64), "buffers": torch.empty(0)}
    received: list[Any] = []

    def receive() -> None:
        line = CoordinatorConnection(address, TOKEN, DEADLINE_S)
        line.limit = ANY_VECTORS
        line.send({"kind": "hello"})
        received.append(line.receive_with_vectors())
        line.socket.close()

    client = threading.Thread(target=receive)
    client.start()
    other = CoordinatorConnection(address, TOKEN, DEADLINE_S)
    other.send({"kind": "other"})
    events: list[HubEvent] = []
    while client.is_alive():
        for event in hub.poll(0.01):
            events.append(event)
            if event[1] == {"kind": "hello"}:
                hub.send(event[0], {"kind": "evaluate"}, vectors)
    client.join()
    other.socket.close()
    hub.close()
    ((message, found),) = received
    assert message == {"kind": "evaluate"}
    assert all(torch.equal(found[name], vectors[name]) for name in vectors)
    assert {"kind": "other"} in [message for _, message, _ in events]


def test_what_is_evaluated_while_the_run_ends_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both can come at one moment: that a worker has failed, and a part of a mark."""
    experiment = prepared("experiment=quadratic", "algo=dpsgd", "nodes=1", "eval.sharded=true")
    problem = build_problem(experiment)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        job = ProcessJob(experiment, problem, address, TOKEN, Limits(DEADLINE_S, 1.0), 1, {0: ("cpu",)})
        hub = Hub(listener, TOKEN, print, MessageRules(job))
        monitor = RunMonitor(job, hub, print, None)
        first, worker, last = lines = [CoordinatorConnection(address, TOKEN, DEADLINE_S) for _ in range(3)]
        first.send({"kind": "hello", "role": "evaluator", "name": "evaluator 0"})
        worker.send({"kind": "hello", "role": "node", "node": 0, "host": "127.0.0.1", "port": 1, "gpus": False})
        last.send({"kind": "hello", "role": "evaluator", "name": "evaluator 1"})
        heard = []
        while len(heard) < 3:
            for event in hub.poll(0.1):
                monitor._receive(*event)
                heard.append(event)
        evaluators = monitor.evaluators
        model = (problem.start, problem.start_buffers)
        parts = [EvaluationPart("mark", *model, ((True, None),), (0, 1)) for _ in range(2)]
        evaluators.submit(parts)
        evaluators.assign(time.monotonic())
        sums = parts[0].evaluate(problem)
        first.send({"kind": "evaluated", "sums": sums})
        worker.send({"kind": "failed", "caused_by_peer": False, "error": "it cannot go on", "suspect": None})
        last.send({"kind": "evaluated", "sums": sums})
        poll = hub.poll  # which socket is looked at first is anybody's guess: let it be the worker's
        monkeypatch.setattr(
            hub, "poll", lambda wait_s: sorted(poll(wait_s), key=lambda event: event[0].owner.name[0] < "w")
        )
        monitor._listen()
        assert (monitor.status, monitor.error) == ("failed", "worker 0: it cannot go on")
        for event in hub.poll(0.1):  # if they have not come together
            monitor._receive(*event)
        assert [part.sums for part in parts] == [sums, sums]
        for line in lines:
            line.socket.close()
        hub.close()
