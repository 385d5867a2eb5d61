"""What a preempted run loses: from SLURM's warning to the first step that was not made before; as root.

    python benchmarks/requeue.py [--repeats 5]

On a SLURM cluster of its own a run of four workers on four hosts is warned by SIGUSR1, as before a time limit, and its
batch script has the job started again. The queue is otherwise empty: what it takes is SLURM's own, which here holds a
requeued job back for about 5 s (two minutes with SLURM's defaults).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.support

from tests.support.batch_jobs import REQUEUE, RUN, Record, submit
from tests.support.slurm import Slurm, available

TRAINING = "algo=sync nodes=4 model=resnet8 batch_size=4 eval.every_epochs=null eval.every_steps=20"
TRAINING += " eval.train_samples=16 budget.epochs=null budget.steps=1000000"
STAGES = ("warning to checkpoint and end", "in the queue", "start to first new mark, 20 steps")
PATIENCE_S = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if reason := available():
        parser.exit(1, f"no SLURM on this machine: {reason}\n")
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, Slurm(Path(folder)) as slurm:
        rows = requeues(slurm, options.repeats)
    print(f"medians of {options.repeats}, seconds (smallest to largest)")
    for name, column in zip((*STAGES, "in all"), zip(*rows, strict=True), strict=True):
        print(f"  {name:<36} {statistics.median(column):6.2f} ({min(column):.2f} to {max(column):.2f})")


def requeues(slurm: Slurm, repeats: int) -> list[tuple[float, ...]]:
    """Seconds of each stage, and of all, for one job that is warned so often."""
    rows: list[tuple[float, ...]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = f"srun {RUN} {TRAINING} hydra.run.dir={folder}/run; {REQUEUE}"
        batch = submit(slurm, folder, script, "--nodes=4", "--requeue")
        record = Record(folder / "run")

        def when(condition: Callable[[], bool]) -> float:
            deadline = time.perf_counter() + PATIENCE_S
            while not condition():
                if time.perf_counter() > deadline:
                    raise SystemExit(f"nothing has happened for {PATIENCE_S:g} s:\n{batch.said}")
                time.sleep(0.02)
            return time.perf_counter()

        when(lambda: len(record.marks) > 2)
        for restart in range(1, repeats + 1):
            warned = time.perf_counter()
            slurm.run("scancel", "--signal=USR1", batch.job)
            ended = when(lambda: slurm.job(batch.job)["JobState"] in ("PENDING", "COMPLETING"))
            marks = len(record.marks)
            begun = when(lambda restart=restart: runs(slurm, batch.job, restart))
            stepped = when(lambda marks=marks: len(record.marks) > marks)
            rows.append((ended - warned, begun - ended, stepped - begun, stepped - warned))
        slurm.settle()
    return rows


def runs(slurm: Slurm, job: str, restart: int) -> bool:
    told = slurm.job(job)
    return told["JobState"] == "RUNNING" and int(told["Restarts"]) == restart


if __name__ == "__main__":
    main()
