"""Random faults at random moments: whatever happens, a run ends as its algorithm says, and leaves nothing behind."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.prefork import Prefork
from tests.support.watched_run import BUDGET, FREE_RUNNING, LOCKSTEP, SILENT, STEPS, start

SEEDS = range(6)
VARIANTS = {**{name: [options] for name, options in FREE_RUNNING.items()}, **{n: [o] for n, o in LOCKSTEP.items()}}
VARIANTS["gossip"] += VARIANTS.pop("gossip push")
VARIANTS["easgd"] += [(*FREE_RUNNING["easgd"], "algo.servers=2")]
VARIANTS["downpour"] += [(*FREE_RUNNING["downpour"], "algo.servers=2")]


@dataclass(frozen=True)
class Fault:
    """What happens to a process, so many seconds after the fault before, or after the mark that all begins with.

    kind: kill | stop, for good | pause, for pause_s."""

    after_s: float
    name: str
    kind: str
    pause_s: float


@dataclass(frozen=True)
class Schedule:
    """options: of the command line. marks: that have been evaluated when it begins."""

    options: tuple[str, ...]
    nodes: int
    marks: int
    faults: list[Fault]

    @property
    def fatal(self) -> list[str]:
        """Processes whose loss ends the run."""
        lockstep = self.options in LOCKSTEP.values()
        return [f.name for f in self.faults if f.kind != "pause" and (lockstep or f.name.startswith("server"))]

    @property
    def lost(self) -> list[str]:
        return [fault.name for fault in self.faults if fault.kind != "pause"]


def schedule(algo: str, seed: int) -> Schedule:
    draw = random.Random(f"{algo} {seed}")
    options = draw.choice(VARIANTS[algo])
    nodes = draw.choice([3, 4])
    servers = {"algo.servers=2": 2}.get(options[-1], 1) if algo in ("easgd", "downpour") else 0
    names = [f"worker {rank}" for rank in range(nodes)] + [f"server {shard}" for shard in range(servers)]
    victims = draw.sample(names, draw.choice([1, 1, 2]))
    faults = [
        Fault(draw.uniform(0, 0.3), name, draw.choice(["kill", "stop", "pause"]), draw.uniform(0.3, 1))
        for name in victims
    ]
    return Schedule(options, nodes, draw.randint(2, 5), faults)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("algo", VARIANTS)
def test_a_run_ends_as_its_algorithm_says_whatever_happens(
    prefork: Prefork, tmp_path: Path, algo: str, seed: int
) -> None:
    plan = schedule(algo, seed)
    print(plan)
    watched = start(prefork, tmp_path / "run", *plan.options, f"nodes={plan.nodes}", BUDGET, SILENT)
    watched.run.until(lambda: len(watched.run.marks) >= plan.marks)
    found = watched.observe()
    wakes: list[tuple[float, int]] = []
    for fault in plan.faults:
        time.sleep(fault.after_s)
        os.kill(found[fault.name], signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)
        if fault.kind == "pause":
            wakes.append((time.monotonic() + fault.pause_s, found[fault.name]))
        if fault.name in plan.fatal and fault.kind == "kill":
            break  # it ends within moments, and the others with it
    for wake_s, pid in sorted(wakes):
        time.sleep(max(0.0, wake_s - time.monotonic()))
        if pid in watched.observe().values():
            os.kill(pid, signal.SIGCONT)
    watched.skip_pauses()
    if plan.fatal:
        watched.assert_ends("failed", 1)
        error = watched.run.summary["error"]
        assert watched.run.err.splitlines().count(error) == 1
        assert any(name in error for name in plan.fatal)
        assert (watched.run.folder / "checkpoint.pt").exists()
    else:
        watched.assert_ends("completed", 0)
        assert watched.run.summary["workers_lost"] == len(plan.lost)
        assert watched.run.summary["samples"] >= STEPS * plan.nodes
        for name in plan.lost:
            assert any(line.endswith("the others go on") for line in watched.lines_about(name))
