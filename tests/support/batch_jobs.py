"""A batch script that types dsgd-run under srun, and what becomes of it."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.command import SCRIPTS
from tests.support.slurm import ENDED, NODES, Slurm

PATIENCE_S = 100  # after which a test gives up; nothing is measured with it
RUN = shlex.quote(str(SCRIPTS / "dsgd-run"))
QUADRATIC = "experiment=quadratic eval.every_steps=10"
# with steps that take a while, so that something can happen to a run
SLOW = f"{QUADRATIC} data._target_=tests.support.slow_gradients.SlowGradients engine.patience_s=0.5"
# what a batch script that can be preempted ends with: the job is to go on if its run was ended early
REQUEUE = 'status=$?; if [ $status = 130 ]; then scontrol requeue "$SLURM_JOB_ID"; fi; exit $status'


@dataclass(frozen=True)
class Record:
    folder: Path

    @property
    def marks(self) -> list[dict[str, Any]]:
        """Whole lines only: it may be written at this moment."""
        metrics = self.folder / "metrics.jsonl"
        lines = metrics.read_text().split("\n")[:-1] if metrics.exists() else []
        return [json.loads(line) for line in lines]

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())


@dataclass(frozen=True)
class Batch:
    slurm: Slurm
    job: str
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    @property
    def restarts(self) -> int:
        return int(self.slurm.job(self.job)["Restarts"])

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait until the condition holds. Fails if the job ends before."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            state = self.slurm.job(self.job)["JobState"]
            assert state not in ENDED or condition(), f"{state} too early: {self.said}"
            assert time.monotonic() < deadline, f"it never happened, {state}: {self.said}"
            time.sleep(0.1)

    def ends(self, state: str) -> None:
        assert self.slurm.wait(self.job, timeout_s=PATIENCE_S) == state, self.said

    def leaves_nothing(self) -> None:
        """No process of the job is left on any node; SLURM's own may take a moment."""
        deadline = time.monotonic() + PATIENCE_S
        while left := {node: found for node in NODES if (found := self.slurm.processes(node))}:
            assert time.monotonic() < deadline, f"left on the nodes: {left}"
            names = [name for found in left.values() for name in found.values()]
            assert not any(name.startswith(("dsgd", "python", "worker")) for name in names)
            time.sleep(0.05)


def submit(slurm: Slurm, folder: Path, script: str, *options: str) -> Batch:
    """Submit from a folder, in which its log will be. One task a node, unless the options say otherwise."""
    log = folder / "log"
    given = ("--open-mode=append", f"--output={log}", *options)
    environment = slurm.environment | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return Batch(slurm, slurm.submit(script, *given, cwd=folder, env=environment), log)
