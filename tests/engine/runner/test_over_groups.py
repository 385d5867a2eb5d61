"""`engine=torch` from its command line: a run as torchrun starts it, and what is refused before anything is written."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.cli.compose import composed
from dsgd.engines.sim.simulation import Simulation
from dsgd.engines.torch.group_channel import GroupChannel, Wait
from dsgd.engines.torch.group_training import GroupTraining
from dsgd.record.checkpoint_file import NAME, read_header
from dsgd.runner.configuration import configure
from dsgd.runner.plan import plan_run
from dsgd.runner.values import ConfigError
from dsgd.worker import Request
from tests.support.command import wait_until
from tests.support.long import all_long_but

PATIENCE_S = 300  # nothing is measured with it
LAUNCHED = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}

BREAKING = """
import torch

class Samples:
    reads = 0
    def __len__(self):
        return 64
    def __getitem__(self, index):
        Samples.reads += 1
        if Samples.reads > 1000:
            raise OSError("a read too many")
        return torch.ones(4) * index / 64, index % 2

def sets():
    return Samples(), Samples()
"""


INTERRUPTING = """
import os
import time

import torch

class Samples:
    reads = 0
    def __len__(self):
        return 64
    def __getitem__(self, index):
        number = int(os.environ.get("SIGNAL", 0))
        Samples.reads += 1
        if number and os.environ["RANK"] == "1" and Samples.reads > 250:  # fewer come before the first step
            time.sleep(0.01)  # the period between two sums of wishes has few such steps
            if Samples.reads == 300:
                os.kill(os.getpid(), number)
        return torch.sin(torch.arange(4.0) * index), index % 2

def sets():
    return Samples(), Samples()
"""
# what decides a mark's numbers in an undisturbed run, and in one that resumed
REPEATED = ("samples", "train_loss", "test_loss", "test_accuracy", "consensus_distance", "bytes_sent", "staleness_max")
RESUMING = {
    "diloco": ("algo=diloco", "algo.tau=3"),
    "delayfree": ("algo=delayfree", "algo.tau=4", "optimizer=adamw", "optimizer.lr=0.01"),
    "sgp": ("algo=sgp", "algo.overlap=2", "topology=one_peer_exponential"),
    "choco": ("algo=choco",),
    "sync": ("algo=sync",),
    "noloco": ("algo=noloco", "algo.tau=3"),
}


def started(folder: Path, *overrides: str, killed: bool = False) -> list[tuple[int, str]]:
    """Start two processes as torchrun does. Returns the exit status and standard error of each.

    killed: rank 1 is, after the second mark."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    children = []
    for rank in ("0", "1"):
        launched = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1"}
        line = [sys.executable, "-m", "dsgd.cli.run", "engine=torch", "nodes=2", f"hydra.run.dir={folder}", *overrides]
        environment = {**os.environ, **launched, "MASTER_PORT": str(port)}
        children.append(subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        if killed:
            metrics = folder / "metrics.jsonl"
            wait_until(lambda: metrics.is_file() and metrics.read_text().count("\n") > 1, children[1])
            children[1].kill()
        errors = [child.communicate(timeout=PATIENCE_S)[1] for child in children]
        return [(child.returncode, text) for child, text in zip(children, errors, strict=True)]
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_torchrun_starts_a_run_over_process_groups_with_a_whole_record(tmp_path: Path) -> None:
    options = ("algo=delayfree", "optimizer=muon", "budget.epochs=null", "budget.steps=9", "eval.every_steps=3")
    ended = started(tmp_path / "run", *options)
    assert [status for status, _ in ended] == [0, 0], ended
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["engine"], summary["clock"]) == ("completed", "torch", "wall")
    assert (summary["steps"], summary["worker_steps"], summary["collective"]) == (9, [9, 9], "gloo")
    measured = marks(tmp_path / "run")
    assert [mark["samples"] for mark in measured] == [0, 96, 192, 288]
    assert measured[-1]["bytes_sent"] == summary["bytes_sent_total"] > 0
    simulated = Simulation(configure(composed(["nodes=2", "cluster.gradient_s=1", *options])).experiment)
    losses = [mark["test_loss"] for mark in simulated.run()]
    assert [mark["test_loss"] for mark in measured] == pytest.approx(losses, rel=1e-4)


def test_a_run_that_fails_before_its_first_mark_has_a_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    plan = plan_run(composed(["nodes=2", "engine=torch"]), [])
    # rank 0 alone, which the other one has left
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        summary = GroupTraining(plan, torch.device("cpu")).summary()
    finally:
        dist.destroy_process_group()
    assert (summary["samples"], summary["bytes_sent_total"], summary["test_loss"]) == (0, 0, None)


def test_a_run_that_is_stopped_waits_for_what_it_has_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process group must not end before its operations."""
    started, awaited = list[int](), list[int]()
    start = GroupChannel.start

    def start_counted(channel: GroupChannel, request: Request, step: int) -> Wait:
        started.append(step)
        wait = start(channel, request, step)
        return lambda: (awaited.append(step), wait())[1]

    monkeypatch.setattr(GroupChannel, "start", start_counted)
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    plan = plan_run(composed(["nodes=2", "engine=torch", "engine.checkpoint_every_s=0.01", "algo=delayfree"]), [])
    # rank 0 alone
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        training = GroupTraining(plan, torch.device("cpu"))
        for _ in training.run(lambda: True, lambda _: None):
            pass
    finally:
        dist.destroy_process_group()
    assert training.status == "interrupted"
    assert awaited == started != []


@pytest.mark.parametrize(
    ("algo", "number"),
    all_long_but(
        [("diloco", signal.SIGKILL)],
        list(zip(RESUMING, (signal.SIGKILL, signal.SIGTERM) * len(RESUMING), strict=False)),
    ),
)
def test_a_run_that_was_killed_or_stopped_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algo: str, number: signal.Signals
) -> None:
    """Rank 1 gets the signal in the midst. A kill takes the steps since the latest checkpoint."""
    (tmp_path / "interrupting.py").write_text(INTERRUPTING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    data = ("data=import", "data.target=interrupting.sets", "data.classes=2", "data.decode=each_read", "batch_size=4")
    budget = ("budget.steps=200", "budget.epochs=null", "eval.every_epochs=null", "eval.every_steps=20")
    options = (*RESUMING[algo], *data, *budget, "engine.checkpoint_every_s=0.01")
    assert [status for status, _ in started(tmp_path / "whole", *options)] == [0, 0]
    monkeypatch.setenv("SIGNAL", str(int(number)))
    first = started(tmp_path / "run", *options)
    assert [status for status, _ in first] == ([1, -9] if number == signal.SIGKILL else [130, 130]), first
    header = read_header(tmp_path / "run" / NAME)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == ("failed" if number == signal.SIGKILL else "interrupted")
    monkeypatch.delenv("SIGNAL")
    resumed = started(tmp_path / "run", *options, "resume=auto")
    assert [status for status, _ in resumed] == [0, 0], resumed
    whole, run = (marks(tmp_path / name) for name in ("whole", "run"))
    assert 0 < header["lines"] < len(whole)
    assert [[mark[key] for key in REPEATED] for mark in run] == [[mark[key] for key in REPEATED] for mark in whole]
    times = [mark["time_s"] for mark in run]
    assert times == sorted(times)
    assert not (tmp_path / "run" / NAME).exists()


def marks(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_a_rank_that_dies_ends_the_run_with_a_line_that_names_the_operation(tmp_path: Path) -> None:
    budget = ("budget.epochs=1000", "eval.every_epochs=null", "eval.every_steps=20", "eval.train_samples=8")
    (status, text), _ = started(tmp_path / "run", "algo=sync", *budget, killed=True)
    assert status == 1
    assert "Traceback" not in text
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["error"].startswith("rank 0: mean_gradient at step ")
    assert summary["error"] in text


@pytest.mark.long
def test_data_that_break_while_a_run_trains_are_a_line_on_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "breaking.py").write_text(BREAKING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    data = ("data=import", "data.target=breaking.sets", "data.classes=2", "data.decode=each_read", "batch_size=4")
    ended = started(tmp_path / "run", "algo=sync", "budget.steps=400", "budget.epochs=null", *data)
    for status, text in ended:
        assert status == 1, text
        assert "Traceback" not in text
        assert "a read too many" in text or "failed" in text
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "^engine=torch must be started by torchrun or srun.*torchrun --nproc-per-node=2"),
        (["algo=gossip"], "^engine must be sim or dist with algo=gossip, got torch: its workers do not keep step"),
        (["algo=easgd"], "^engine must be sim or dist with algo=easgd, got torch: its workers ask a parameter server"),
    ],
)
def test_what_cannot_run_over_process_groups_is_said_in_one_line(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_run(composed(["nodes=2", "engine=torch", *overrides]), overrides)


@pytest.mark.parametrize("override", ["budget.time_s=5", "eval.every_time_s=1", "trace=true", "engine.gpus_per_node=2"])
def test_a_key_that_engine_torch_does_not_serve_is_named(override: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ConfigError, match=rf"^{override.partition('=')[0]} must be .*engine=torch|^engine.gpus_per_node"
    ):
        plan_run(composed(["nodes=2", "engine=torch", override]), [override])
