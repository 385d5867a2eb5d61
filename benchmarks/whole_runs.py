"""How long whole runs take, as a user types them: shell to shell, start-up, marks and record included.

    python benchmarks/whole_runs.py [--repeats 5] [--cases marks loop fine sweep start demo]

Each case types two commands in turn, or one, and gives the median of the ratios of their times, or of the seconds. All
with one thread, but for the sweep in parallel. Ratios hold on a machine that wavers; seconds want an idle one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DSGD_RUN = str(Path(sys.executable).with_name("dsgd-run"))
ALGORITHMS = "sync,easgd,downpour,gossip,dpsgd,delayfree"
RESNET8 = ("algo=gossip", "nodes=32", "model=resnet8", "engine=sim")
MLP_100 = (
    "algo=gossip",
    "nodes=100",
    "data=shapes",
    "data.resolution=8",
    "model=mlp",
    "model.hidden=[128]",
    "engine=sim",
)
ENDS_ONLY = ("eval.every_epochs=null",)
SWEEP = ("-m", "experiment=slow_network", f"algo={ALGORITHMS}", "seed=0,1,2")


@dataclass(frozen=True)
class Case:
    """Two commands of which the first takes longer, or one. goal: for the ratio, or for the seconds of one command."""

    what: str
    first: Sequence[str]
    second: Sequence[str]
    goal: str


CASES = {
    "marks": Case(
        "ResNet-8, 32 nodes: marks every epoch / at start and end", RESNET8, (*RESNET8, *ENDS_ONLY), "<= 1.2"
    ),
    "loop": Case("ResNet-8, 32 nodes: loop / compiled", (*RESNET8, "engine.gradients=loop"), RESNET8, ">= 2.5"),
    "fine": Case(
        "MLP, 100 nodes: 4 marks an epoch / at start and end",
        (*MLP_100, "eval.every_epochs=0.25"),
        (*MLP_100, *ENDS_ONLY),
        "<= 2",
    ),
    "sweep": Case(
        "18 runs of slow_network: one after the other / in parallel",
        (*SWEEP, "sweep.jobs=1"),
        (*SWEEP, "sweep.jobs=auto"),
        ">= 1.8 on 2 cores",
    ),
    "start": Case("budget.steps=1 model=mlp, seconds", ("budget.steps=1", "model=mlp"), (), "<= 3"),
    "demo": Case("make demo after set-up, seconds", ("make", "demo"), (), "<= 15"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    options = parser.parse_args()
    print("| case | median | each | goal |\n|---|---:|---|---|")
    for case in (CASES[name] for name in options.cases):
        seconds(case.first)  # what files are read is in memory from here on
        found = [
            seconds(case.first) / seconds(case.second) if case.second else seconds(case.first)
            for _ in range(options.repeats)
        ]
        each = " ".join(f"{value:.2f}" for value in found)
        print(f"| {case.what} | {statistics.median(found):.2f} | {each} | {case.goal} |", flush=True)


def seconds(arguments: Sequence[str]) -> float:
    """Return how long a command takes. Raises CalledProcessError, after what it printed, if it fails."""
    folder = Path(tempfile.mkdtemp(prefix="whole-run-"))
    where = f"hydra.sweep.dir={folder}/runs" if "-m" in arguments else f"hydra.run.dir={folder}/run"
    command = list(arguments) if arguments[0] == "make" else [DSGD_RUN, *arguments, where]
    begun = time.perf_counter()
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    taken = time.perf_counter() - begun
    shutil.rmtree(folder)
    if ended.returncode:
        print(ended.stdout, file=sys.stderr)
        ended.check_returncode()
    return taken


if __name__ == "__main__":
    main()
