"""A sum of vectors over all workers: our ring beside gloo's all-reduce, between processes of this machine.

    python benchmarks/ring.py [--workers 2 4] [--numbers 11689512 17500] [--rounds 15]

The two take turns; milliseconds by the clock and by the processor time of rank 0's process, medians over the rounds,
and medians of the ratios of neighbours. The processor's depend less on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.engines.dist.pairwise.plane import Plane

HOST, TOKEN = "127.0.0.1", b"a benchmark's key"
PATIENCE_S = 120.0
ROUND_BYTES, MOST_SUMS = 4 << 20, 50  # small vectors are summed several times in a round
HEADINGS = ("MB", "workers", "gloo ms", "ring ms", "ratio", "gloo CPU", "ring CPU", "ratio")


def take_turns(ways: dict[str, Callable[[Tensor], object]], numbers: int, rounds: int) -> list[list[tuple[float, ...]]]:
    """Return for each way the (wall, processor) milliseconds of a sum in every round; a first one warms up."""
    sums = max(1, min(MOST_SUMS, ROUND_BYTES // (4 * numbers)))
    found: list[list[tuple[float, ...]]] = [[] for _ in ways]
    for place in range(rounds + 1):
        for way, run in enumerate(ways.values()):
            v = torch.full((numbers,), 1e-30)  # sums of sums are finite
            dist.barrier()
            begin = time.perf_counter(), time.process_time()
            for _ in range(sums):
                run(v)
            end = time.perf_counter(), time.process_time()
            if place:
                found[way].append(tuple((b - a) / sums * 1e3 for a, b in zip(begin, end, strict=True)))
    return found


def work(rank: int, workers: int, numbers: int, rounds: int, folder: str) -> None:
    """Take part as one worker; rank 0 prints a row."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store, limit = FileStore(os.path.join(folder, "store"), workers), timedelta(seconds=PATIENCE_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=workers, timeout=limit)
    with Plane(rank, workers, HOST, TOKEN, numbers, torch.float32, PATIENCE_S, PATIENCE_S, print) as plane:
        store.set(f"port of {rank}", str(plane.port))
        right = int(store.get(f"port of {(rank + 1) % workers}"))
        with closing(plane.ring(1, (HOST, right))) as ring:
            gloo, ours = take_turns({"gloo": dist.all_reduce, "ring": ring.all_reduce}, numbers, rounds)
            dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        row = [f"{numbers * 4e-6:.3f}", str(workers)]
        for kind in range(2):
            pairs = [(a[kind], b[kind]) for a, b in zip(gloo, ours, strict=True)]
            row += [f"{statistics.median(of):.3f}" for of in zip(*pairs, strict=True)]
            row.append(f"{statistics.median(b / a for a, b in pairs):.2f}")
        print(" ".join(f"{cell:>9}" for cell in row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--numbers", type=int, nargs="+", default=[11_689_512, 17_500], help="float32")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print(" ".join(f"{heading:>9}" for heading in HEADINGS), flush=True)
    for numbers in options.numbers:
        for workers in options.workers:
            with tempfile.TemporaryDirectory() as folder:
                pids: list[int] = []
                for rank in range(workers):
                    pids.append(os.fork())
                    if pids[-1] == 0:
                        work(rank, workers, numbers, options.rounds, folder)
                        os._exit(0)
                for pid in pids:
                    os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
