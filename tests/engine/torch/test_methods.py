"""A lock-step method over process groups is the simulator's: in a loop of the user's, which also goes on from a
stored state to the bit, and as a run of `engine=torch`."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import dsgd.torch
from dsgd.cli.compose import composed
from dsgd.engines.torch.group_training import GroupTraining
from dsgd.runner.configuration import RunConfig, configure
from dsgd.runner.plan import Plan
from tests.support.own_loops import batches, in_processes, problem_of
from tests.support.simulate import simulate, with_gradient_s
from tests.support.simulated import assert_close

COMMON = ("precision=fp64", "batch_size=4", "model.hidden=[8]", "optimizer.lr=0.1", "optimizer.momentum=0.5")
STEPS = 16
BUDGET = ("budget.epochs=null", f"budget.steps={STEPS}", "eval.every_epochs=null", "eval.every_steps=4")
BUDGET += ("eval.train_samples=32",)
MEASURED = ("samples", "lr", "train_loss", "test_loss", "test_accuracy", "consensus_distance")
TIMED = ("streaming, 8 bits",)  # whose marks come before or after a merge, as its messages take time
REDUCING = ("sync", "delayfree", "diloco, delayed")  # whose staleness does not depend on when messages arrive
# name of the method, its options, its topology: each is stored after half of the steps, where a cycle ends
METHODS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "sync": ("sync", {}, None),
    "sync, no overlap": ("sync", {"overlap": False}, None),
    "powersgd": ("compressed", {}, None),
    "topk": ("compressed", {"code": "topk"}, None),
    "qsgd": ("compressed", {"code": "qsgd"}, None),
    "localsgd": ("localsgd", {"tau": 4, "switch": 3, "momentum": "average"}, None),
    "groups": ("localsgd", {"tau": 4, "inner_tau": 2, "group": 2, "momentum": "zero"}, None),
    "diloco": ("diloco", {"tau": 5}, None),
    "diloco, eager": ("diloco", {"tau": 4, "overlap": "eager", "olr": 0.3}, None),
    "diloco, delayed": ("diloco", {"tau": 4, "overlap": "delayed", "olr": 0.2}, None),
    # all entries of a chunk: of two that are equally large a rounding error would decide which one is sent
    "diloco, sparse": ("diloco", {"tau": 4, "code": "sparse", "chunk": 32, "kept": 32, "olr": 1.0, "beta": 0.0}, None),
    "streaming": ("streaming", {"tau": 8, "fragments": 2, "delay": 2}, None),
    "streaming, 8 bits": ("streaming", {"tau": 4, "fragments": 2, "bits": 8}, None),
    "sparta": ("sparta", {"share": 0.1, "tau": 5}, None),
    "delayfree": ("delayfree", {"tau": 8}, None),
    "dpsgd": ("dpsgd", {}, None),
    "dpsgd, after": ("dpsgd", {"gradient": "after"}, "complete"),
    "sgp": ("sgp", {}, "one_peer_exponential"),
    "sgp, overlap": ("sgp", {"overlap": 2}, "one_peer_exponential"),
    "d2": ("corrected", {"method": "d2"}, None),
    "tracking": ("corrected", {"method": "tracking"}, None),
    "qg": ("corrected", {"method": "qg"}, None),
    "decentlam": ("corrected", {"method": "decentlam"}, None),
    "choco": ("choco", {}, None),
    "choco, code": ("choco", {"compressor": "qsgd", "order": "code"}, None),
    "relay": ("relay", {}, None),
    "noloco": ("noloco", {"tau": 4}, None),
    "gasloc": ("gasloc", {"tau": 5, "alpha": 0.8}, "complete"),
    "gasloc, overlap": ("gasloc", {"tau": 4, "peers": "one", "overlap": 0.5}, None),
}


def overrides(name: str) -> list[str]:
    """The same method on the command line of the simulator."""
    algo, options, topology = METHODS[name]
    momentum = ["optimizer.momentum=0"] if name in ("qg", "decentlam") else []
    given = [f"topology={topology}"] * (topology is not None)
    return [*COMMON, *momentum, f"algo={algo}", *given, *(f"algo.{key}={value}" for key, value in options.items())]


def configured(name: str, nodes: int) -> RunConfig:
    return configure(with_gradient_s(composed([*overrides(name), f"nodes={nodes}", *BUDGET])))


def training(name: str, problem: Any) -> dsgd.torch.DistributedModel:
    algo, options, topology = METHODS[name]
    momentum = 0.0 if name in ("qg", "decentlam") else 0.5
    optimizer = torch.optim.SGD(problem.module.parameters(), lr=0.1, momentum=momentum)
    return dsgd.torch.distribute(problem.module, optimizer, algo, options, topology=topology, steps=STEPS)


def train_all(folder: Path, names: Sequence[str]) -> None:
    """Train by each method, and again from the state stored in the midst. Runs on every rank."""
    rank = dist.get_rank()
    for name in names:
        problem = problem_of(*overrides(name), f"nodes={dist.get_world_size()}")
        model, stored = training(name, problem), io.BytesIO()
        for step, loss in enumerate(batches(problem, rank, range(STEPS)), start=1):
            loss(model).backward()
            model.step()
            if step == STEPS // 2:
                torch.save(model.state_dict(), stored)
        with model.output():
            output = model.worker.x.numpy().copy()
        again = training(name, problem_of(*overrides(name), f"nodes={dist.get_world_size()}"))
        stored.seek(0)
        again.load_state_dict(torch.load(stored, weights_only=False))
        for loss in batches(problem, rank, range(STEPS // 2, STEPS)):
            loss(again).backward()
            again.step()
        run = GroupTraining(Plan(configured(name, dist.get_world_size()), "torch", "", None), torch.device("cpu"))
        marks = list(run.run(lambda: False, lambda _: None))
        if rank == 0:
            (folder / f"{name}.json").write_text(json.dumps(marks))
        xs = [model.worker.x, again.worker.x, run.lockstep.worker.x]
        np.save(folder / f"{name} {rank}.npy", np.stack([*xs, torch.from_numpy(output)]))


def check(folder: Path, names: Sequence[str], nodes: int) -> None:
    in_processes(folder, "tests.engine.torch.test_methods:train_all", list(names), nodes)
    for name in names:
        simulated = simulate(*overrides(name), f"nodes={nodes}", *BUDGET)
        centre, xs = simulated.simulation.machine.centre(), simulated.x.numpy()
        for rank in range(nodes):
            x, again, run, output = np.load(folder / f"{name} {rank}.npy")
            assert_close(x, xs[rank], 1e-10)
            assert (again == x).all(), name
            assert_close(run, xs[rank], 1e-10)
            assert_close(output, xs.mean(axis=0) if centre is None else centre.numpy(), 1e-10)
        marks = by_samples(json.loads((folder / f"{name}.json").read_text()))
        expected = by_samples(simulated.marks)
        assert len(marks) == len(expected) == 1 + STEPS // 4
        for samples, mark in [*marks.items()][-1 if name in TIMED else 0 :]:
            for field in (*MEASURED, *["staleness_max"] * (name in REDUCING)):
                assert mark[field] == pytest.approx(expected[samples][field], rel=1e-9, abs=1e-12), (name, field)


def by_samples(marks: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The simulator has a mark of the last step and one of what follows it, an average maybe: the latter counts."""
    return {mark["samples"]: mark for mark in marks}


def test_a_loop_of_the_users_is_the_simulators_run_and_resumes_exactly(tmp_path: Path) -> None:
    """One method for each kind of communication; tests/system/torch has all of them."""
    check(tmp_path, ("sync", "diloco", "delayfree", "sgp, overlap", "choco, code"), nodes=2)
