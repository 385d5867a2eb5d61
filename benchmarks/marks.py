"""What does a mark cost the coordinator? Memory, bytes of vectors and seconds, with many workers and a large model.

    python benchmarks/marks.py
    python benchmarks/marks.py --nodes 16 --model resnet8

Each worker is a process that hands in one vector, as at the end of a run, and trains nothing: so 64 of them, with a
ResNet-18, fit on one machine. The coordinator is the package's own. With `sync` all vectors are
equal, as after an all-reduce; with `dpsgd` and `gossip` each is another. Memory: the largest growth of what the process
has of its own, sampled every 5 ms; pages of files, which the system can write out, do not count.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.support

from torch import Tensor

from dsgd.problem.problem import build_problem
from tests.support.cases import prepared
from tests.support.last_mark import STEPS, last_mark

IMAGES = (
    "data=shapes",
    "data.resolution=32",
    "data.channels=3",
    "data.train_size=256",
    "data.test_size=16",
    "batch_size=1",
)
ONE_MARK = ("budget.epochs=null", "eval.every_epochs=null", "eval.every_steps=null")
STATUS = Path("/proc/self/status")


def own_mb() -> float:
    """Return the memory in MB that this process has of its own."""
    match = re.search(r"RssAnon:\s+(\d+) kB", STATUS.read_text())
    assert match is not None
    return int(match[1]) * 1024 / 1e6


def measure(algo: str, nodes: int, model: str) -> str:
    """Return a line about one mark."""
    training = (f"model={model}", *IMAGES, *ONE_MARK, f"budget.steps={STEPS}")
    experiment = prepared(f"algo={algo}", f"nodes={nodes}", *training)
    problem = build_problem(experiment)
    before, over = own_mb(), threading.Event()
    sampled = [before]

    def sample() -> None:
        while not over.wait(0.005):
            sampled.append(own_mb())

    def vector_of(rank: int) -> Tensor:
        return problem.start if algo == "sync" else problem.start + rank

    sampler = threading.Thread(target=sample)
    begun = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(dir=".") as folder,
        last_mark(experiment, problem, vector_of, Path(folder), started=sampler.start) as mark,
    ):
        seconds = time.perf_counter() - begun
        over.set()
        sampler.join()
        vectors = nodes * problem.start.nbytes
        return (
            f"{algo}: {nodes} workers' vectors {vectors / 1e6:.0f} MB; received {mark.nbytes / 1e6:.0f} MB, memory "
            f"{max(sampled) - before:.0f} MB, {seconds:.1f} s"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", default=["sync", "dpsgd", "gossip"])
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--model", default="resnet18")
    options = parser.parse_args()
    for algo in options.algorithms:
        print(measure(algo, options.nodes, options.model), flush=True)


if __name__ == "__main__":
    main()
