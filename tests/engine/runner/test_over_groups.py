"""`engine=torch` from its command line: a run as torchrun starts it, and what is refused before anything is written."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

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
from tests.engine.dist.launch.test_torchrun import free_port, static
from tests.support.command import marks
from tests.support.prefork import Prefork, Run

LAUNCHED = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


class Samples:
    """64 samples. SIGNAL: what rank 1 sends itself in the midst. BREAKS: after how many reads there are no more."""

    reads = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        Samples.reads += 1
        number, breaks = (int(os.environ.get(name, 0)) for name in ("SIGNAL", "BREAKS"))
        if breaks and Samples.reads > breaks:
            raise OSError("a read too many")
        if number and os.environ["RANK"] == "1" and Samples.reads > 250:  # fewer come before the first step
            time.sleep(0.01)  # the period between two sums of wishes has few such steps
            if Samples.reads == 300:
                os.kill(os.getpid(), number)
        return torch.sin(torch.arange(4.0) * index), index % 2


def sets() -> tuple[Samples, Samples]:
    return Samples(), Samples()


# what decides a mark's numbers in an undisturbed run, and in one that resumed
REPEATED = ("samples", "train_loss", "test_loss", "test_accuracy", "consensus_distance", "bytes_sent", "staleness_max")


def started(prefork: Prefork, folder: Path, *overrides: str, **environment: str) -> list[Run]:
    """Start two processes as torchrun does, and wait for their ends. Rank 0 has the record."""
    line, port = ("engine=torch", "nodes=2", *overrides), free_port()
    runs = []
    for rank in (0, 1):
        variables = {**static(rank, port), **environment}
        question = {"arguments": [*line, f"hydra.run.dir={folder}"], "folder": f"{folder}{rank}"}
        runs.append(Run(prefork, prefork.ask({**question, "environment": variables})["pid"], Path(f"{folder}{rank}")))
    for run in runs:
        run.wait()
    return runs


def statuses(runs: list[Run]) -> list[int | None]:
    return [run.poll() for run in runs]


def test_a_run_over_process_groups_has_a_whole_record(prefork: Prefork, tmp_path: Path) -> None:
    options = ("algo=delayfree", "optimizer=muon", "budget.epochs=null", "budget.steps=9", "eval.every_steps=3")
    runs = started(prefork, tmp_path / "run", *options)
    assert statuses(runs) == [0, 0], runs[0].err
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


def test_a_run_that_was_killed_and_then_stopped_goes_on_to_the_same_bits(prefork: Prefork, tmp_path: Path) -> None:
    """Rank 1 gets each signal in the midst. A kill takes the steps since the latest checkpoint."""
    data = ("data=import", f"data.target={__name__}.sets", "data.classes=2", "data.decode=each_read", "batch_size=4")
    budget = ("budget.steps=100", "budget.epochs=null", "eval.every_epochs=null", "eval.every_steps=10")
    algo = ("algo=delayfree", "algo.tau=4", "optimizer=adamw", "optimizer.lr=0.01")
    options = (*algo, *data, *budget, "engine.checkpoint_every_s=0.03")
    assert statuses(started(prefork, tmp_path / "whole", *options)) == [0, 0]
    killed = started(prefork, tmp_path / "run", *options, SIGNAL=str(int(signal.SIGKILL)))
    assert statuses(killed) == [1, -9], killed[0].err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["error"].startswith("rank 0: ")
    assert " at step " in summary["error"]
    assert summary["error"] in killed[0].err
    assert "Traceback" not in killed[0].err
    lines = read_header(tmp_path / "run" / NAME)["lines"]
    stopped = started(prefork, tmp_path / "run", *options, "resume=auto", SIGNAL=str(int(signal.SIGTERM)))
    assert statuses(stopped) == [130, 130], stopped[0].err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "interrupted"
    resumed = started(prefork, tmp_path / "run", *options, "resume=auto")
    assert statuses(resumed) == [0, 0], resumed[0].err
    whole, run = (marks(tmp_path / name) for name in ("whole", "run"))
    assert 0 < lines < len(whole)
    assert [[mark[key] for key in REPEATED] for mark in run] == [[mark[key] for key in REPEATED] for mark in whole]
    times = [mark["time_s"] for mark in run]
    assert times == sorted(times)
    assert not (tmp_path / "run" / NAME).exists()


def test_data_that_break_while_a_run_trains_are_a_line_on_every_rank(prefork: Prefork, tmp_path: Path) -> None:
    data = ("data=import", f"data.target={__name__}.sets", "data.classes=2", "data.decode=each_read", "batch_size=4")
    line = ("algo=sync", "budget.steps=400", "budget.epochs=null", *data)
    for run in started(prefork, tmp_path / "run", *line, BREAKS="1000"):
        assert run.poll() == 1, run.err
        assert "Traceback" not in run.err
        assert "a read too many" in run.err or "failed" in run.err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"


def test_a_key_that_engine_torch_does_not_serve_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    for override in ("budget.time_s=5", "eval.every_time_s=1", "trace=true", "engine.gpus_per_node=2"):
        key = override.partition("=")[0]
        with pytest.raises(ConfigError, match=rf"^{key} must be .*engine=torch|^engine.gpus_per_node"):
            plan_run(composed(["nodes=2", "engine=torch", override]), [override])
