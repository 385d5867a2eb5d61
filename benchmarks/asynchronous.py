"""What gossip and delay-free averaging add to a step: two real workers here, against steps that talk to nobody.

    python benchmarks/asynchronous.py --repeats 5

Step time = training time x workers x batch size / samples, from the records of `dsgd-run engine=dist`; the runs of one
round follow each other, medians over the rounds, ratios within a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

DSGD_RUN = Path(sys.executable).parent / "dsgd-run"
NEVER = 10**9
WAYS = {
    "no communication": ("algo=gossip", f"algo.tau={NEVER}"),
    "gossip, pull, tau=1": ("algo=gossip", "algo.tau=1"),
    "gossip, push, tau=1": ("algo=gossip", "algo.tau=1", "algo.mode=push"),
    "delayfree, tau=16": ("algo=delayfree", "algo.tau=16"),
}


def step_s(options: argparse.Namespace, way: str, folder: Path) -> float:
    """Seconds of a step, in a run of its own."""
    arguments = [f"model={options.model}", f"data={options.data}", "nodes=2", "engine=dist", f"hydra.run.dir={folder}"]
    arguments += ["budget.epochs=null", f"budget.steps={options.steps}", f"batch_size={options.batch}"]
    arguments += ["eval.every_epochs=null", "eval.every_time_s=1e6", "engine.checkpoint_every_s=null"]
    ended = subprocess.run([DSGD_RUN, *arguments, *WAYS[way]], capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{way}: {ended.stderr}")
    summary = json.loads((folder / "summary.json").read_text())
    return summary["time_s"] * summary["nodes"] * options.batch / summary["samples"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--data", default="shapes")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(options.repeats):
            for number, way in enumerate(WAYS):
                times[way].append(step_s(options, way, Path(folder) / f"{repeat}_{number}"))
    alone = times["no communication"]
    print(f"{options.model} on {options.data}, batches of {options.batch}, 2 workers; medians of {options.repeats}\n")
    print("| step | ms | of a step without communication |\n|---|---:|---:|")
    for way, found in times.items():
        ratio = statistics.median(one / other for one, other in zip(found, alone, strict=True))
        print(f"| {way} | {1e3 * statistics.median(found):.1f} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
