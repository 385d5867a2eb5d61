"""How fast the simulator is without gradients, and how its time grows with the number of nodes.

    python benchmarks/timing_only.py [--algo dpsgd] [--nodes 8 64 512 1024] [--steps 100] [--repeats 5]
    python benchmarks/timing_only.py --nodes 1024 --steps 1000 --repeats 1

The cost of a message should not depend on the number of nodes: the last column is the time per message over that of the
smallest cluster, within one run. Medians of runs that take turns; times per message in CPU time of this process.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time

from dsgd.cli.compose import composed
from dsgd.engines.sim.simulation import EVENTS, Simulation
from dsgd.runner.configuration import configure

WIDTHS = (6, 10, 10, 8, 8, 11, 11, 6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", default="dpsgd")
    parser.add_argument("--nodes", type=int, nargs="+", default=[8, 64, 512, 1024])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"{options.algo}, {options.steps} steps, engine.gradients=none, median of {options.repeats}")
    headings = ("nodes", "messages", "events", "wall s", "CPU s", "messages/s", "us/message", "ratio")
    print(" ".join(f"{heading:>{width}}" for heading, width in zip(headings, WIDTHS, strict=True)))
    runs: dict[int, list[tuple[float, float, int, int]]] = {nodes: [] for nodes in options.nodes}
    for _ in range(options.repeats):
        for nodes in options.nodes:
            runs[nodes].append(one_run(options.algo, nodes, options.steps))
    first = None
    for nodes in options.nodes:
        wall, cpu, messages, events = (statistics.median(column) for column in zip(*runs[nodes], strict=True))
        each = cpu / messages
        first = first or each
        cells = (
            f"{nodes}",
            f"{messages:,.0f}",
            f"{events:,.0f}",
            f"{wall:.3f}",
            f"{cpu:.3f}",
            f"{messages / cpu:,.0f}",
        )
        cells += (f"{each * 1e6:.2f}", f"{each / first:.2f}")
        print(" ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)))


def one_run(algo: str, nodes: int, steps: int) -> tuple[float, float, int, int]:
    """Seconds of wall and CPU time, messages, events."""
    overrides = [f"algo={algo}", f"nodes={nodes}", "engine.gradients=none", "eval.every_epochs=null"]
    overrides += ["budget.epochs=null", f"budget.steps={steps}", "cluster.gradient_s=0.01"]
    simulation = Simulation(configure(composed(overrides)).experiment)
    gc.collect()
    gc.freeze()  # as dsgd-run does
    gc.set_threshold(100_000, 20, 100)
    wall, cpu = time.perf_counter(), time.process_time()
    list(simulation.run(every=EVENTS))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    gc.unfreeze()
    return wall, cpu, simulation.machine.network.messages, simulation.machine.loop.processed


if __name__ == "__main__":
    main()
