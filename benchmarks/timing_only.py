"""How fast the simulator is without gradients, and how its time grows with the number of nodes.

    python benchmarks/timing_only.py [--algo dpsgd] [--nodes 8 64 512 1024] [--steps 100] [--repeats 5]

The cost of a message should not depend on the number of nodes: the last column is the time per message over that of the
smallest cluster, within one run. CPU time of this process, medians.
"""

from __future__ import annotations

import argparse
import statistics
import time

from dsgd.cli.build import build_experiment
from dsgd.cli.compose import composed
from dsgd.sim.simulation import Simulation

WIDTHS = (6, 10, 10, 8, 11, 11, 6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", default="dpsgd")
    parser.add_argument("--nodes", type=int, nargs="+", default=[8, 64, 512, 1024])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"{options.algo}, {options.steps} steps, engine.gradients=none, median of {options.repeats}")
    headings = zip(("nodes", "messages", "events", "CPU s", "messages/s", "us/message", "ratio"), WIDTHS, strict=True)
    print(" ".join(f"{heading:>{width}}" for heading, width in headings))
    first = None
    for nodes in options.nodes:
        seconds, messages, events = [], 0, 0
        for _ in range(options.repeats):
            overrides = [f"algo={options.algo}", f"nodes={nodes}", "engine.gradients=none", "eval.every_epochs=null"]
            overrides += ["budget.epochs=null", f"budget.steps={options.steps}"]
            simulation = Simulation(build_experiment(composed(overrides)[0]))
            begin = time.process_time()
            list(simulation.run())
            seconds.append(time.process_time() - begin)
            messages, events = simulation.machine.network.messages, simulation.machine.loop.processed
        median = statistics.median(seconds)
        each = median / messages
        first = first or each
        cells = (f"{nodes}", f"{messages:,}", f"{events:,}", f"{median:.3f}", f"{messages / median:,.0f}")
        cells += (f"{each * 1e6:.2f}", f"{each / first:.2f}")
        print(" ".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)))


if __name__ == "__main__":
    main()
