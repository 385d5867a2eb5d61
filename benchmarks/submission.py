"""How long dsgd-sweep takes for 300 points: submit, the same again, status; on a SLURM cluster of its own, as root.

    python benchmarks/submission.py [--repeats 3]

The jobs are held and never start. Start-up is what `dsgd-sweep submit` takes to say that an override is missing, and is
taken off. Status is asked while all points are pending: without a record, and with one of 100 marks each.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.support

from tests.support.slurm import Slurm, available

GRID = ["algo=sync,gossip,easgd", "nodes=1,2,3,4", "seed=range(25)"]  # 300 points
KINDS: Mapping[str, Sequence[str]] = {
    "one array (engine=sim)": ["engine=sim"],
    "4 arrays (engine=dist)": ["engine=dist"],
}
PROGRAM = str(Path(sys.executable).parent / "dsgd-sweep")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if reason := available():
        parser.exit(1, f"no SLURM on this machine: {reason}\n")
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, Slurm(Path(folder)) as slurm:
        for kind, engine in KINDS.items():
            rows = [one(slurm, engine) for _ in range(options.repeats)]
            print(f"300 points, {kind}; medians of {options.repeats}, seconds")
            for name in rows[0]:
                print(f"  {name:<36} {statistics.median(row[name] for row in rows):6.2f}")


def one(slurm: Slurm, engine: Sequence[str]) -> dict[str, float]:
    """Seconds of each step."""
    with tempfile.TemporaryDirectory() as folder:

        def timed(*arguments: str, status: int = 0) -> float:
            started = time.perf_counter()
            done = slurm.run(PROGRAM, *arguments, cwd=folder, check=False, timeout=300)
            if done.returncode != status:
                raise SystemExit(done.stdout + done.stderr)
            return time.perf_counter() - started

        submit = ["submit", *GRID, *engine, "slurm.options.hold=true"]
        start_up = timed("submit", "slurm.partition=low", status=2)
        seconds = {"start-up": start_up, "submit, after start-up": timed(*submit) - start_up}
        seconds["the same again, after start-up"] = timed(*submit) - start_up
        seconds["status, all pending"] = timed("status")
        write_records(Path(folder) / "sweep")
        seconds["status --points, each with a record"] = timed("status", "--points")
        slurm.settle()
        shutil.rmtree(Path(folder) / "sweep")
        return seconds


def write_records(sweep: Path) -> None:
    """As far as `status` looks."""
    mark = json.dumps({"time_s": 1.0, "epoch": 1.0, "test_accuracy": 0.5, "train_loss": 0.1}) + "\n"
    for line in (sweep / "manifest.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "point":
            folder = sweep / event["folder"]
            folder.mkdir(parents=True)
            (folder / "metrics.jsonl").write_text(100 * mark)


if __name__ == "__main__":
    main()
