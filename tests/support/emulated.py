"""Runs of dsgd-run on emulated accelerators (`tests/support/accelerator`), which note what is not ordered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cases import prepared
from tests.support.emulated_devices import ACCELERATOR, findings_in, need_emulated_devices
from tests.support.prefork import Prefork, Run

DIST = ("engine=dist", "model=mlp", "model.hidden=[8]", "budget.steps=6", "eval.every_steps=3", "engine.patience_s=60")
ON_DEVICES = "engine.device=accelerator"
FIELDS = ("samples", "train_loss", "test_loss", "test_accuracy", "consensus_distance", "discrepancy")


@pytest.fixture(scope="session")
def emulated_server() -> Iterator[Prefork]:
    """A server whose torch has four emulated accelerators."""
    need_emulated_devices()
    server = Prefork(("env", f"PYTHONPATH={ACCELERATOR}"))
    yield server
    server.close()


@pytest.fixture
def emulated(emulated_server: Prefork) -> Iterator[Prefork]:
    """The server; the runs that a test leaves are killed."""
    yield emulated_server
    emulated_server.end()


def completed(prefork: Prefork, folder: Path, *arguments: str) -> Run:
    """Return a run that has come to its end, and in which no access to a device was out of order."""
    findings = folder.with_suffix(".findings")
    findings.mkdir(parents=True, exist_ok=True)
    run = prefork.run(folder, *arguments, EMU_FINDINGS=str(findings), EMU_UNPINNED="1")
    assert findings_in(findings) == []
    assert run.poll() == 0, run.err
    assert run.summary["status"] == "completed", run.err
    return run


def measured(run: Run) -> list[tuple[float, ...]]:
    """Return what the marks of a run have measured, apart from times."""
    return [tuple(mark[field] for field in FIELDS) for mark in run.marks]


def check_like_the_cpu(emulated: Prefork, cpu: Prefork, folder: Path, algo: str, *options: str) -> None:
    """Run an algorithm on both. In lock-step the results have the same bits; others use their budget, with one model
    at the end that can be evaluated."""
    line = (*DIST, f"algo={algo}", *(option for option in options if not option.startswith("engine.")))
    run = completed(emulated, folder / "emulated", *line, *options, ON_DEVICES)
    assert all(name.startswith("emu:") for name in run.devices), run.devices
    if prepared(f"algo={algo}", "nodes=4").algo.lockstep:
        shared = any(option.startswith("engine.workers_per_gpu") for option in options)
        sums = "own" if shared else "torch"  # gloo's, as those of the emulated devices: it adds in another order
        assert measured(run) == measured(completed(cpu, folder / "cpu", *line, f"engine.collectives={sums}"))
    else:
        assert run.summary["samples"] >= 6 * 16
        assert 0 < run.summary["test_loss"] < 3
