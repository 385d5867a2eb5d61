"""Memory and messages of each algorithm in the simulator, in vectors of d parameters per node.

    python benchmarks/memory.py [--nodes 8] [--model resnet8]

A node needs its vector, its momentum, one gradient (or the snapshot it will be taken at), the algorithm's own vectors
and the messages in flight, which are shared and not copied for each receiver. The table, in Markdown, gives the peak of
tensor memory over nodes times the bytes of one vector, the bytes that a node sends in a step over those of one vector
(servers' included, shared among the nodes), and the number of module objects. Each row is a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
from pathlib import Path

ALGORITHMS = sorted(path.stem for path in Path(__file__).parents[1].glob("conf/algo/*.yaml"))
STEPS = 40  # two rounds of the methods that average every 20 steps
OPTIONS = {"relay": ["topology=chain"]}


def measure(algo: str, nodes: int, model: str, into: multiprocessing.Queue) -> None:
    """Run some steps; report the largest sum of bytes of all live vectors between two events, the bytes sent, d, and
    module objects."""
    import torch

    from dsgd.cli.compose import composed
    from dsgd.engines.sim.simulated import live_vectors
    from dsgd.engines.sim.simulation import Simulation
    from dsgd.runner.configuration import configure

    torch.set_num_threads(1)
    overrides = [f"algo={algo}", f"nodes={nodes}", f"model={model}", "batch_size=4", "optimizer.momentum=0.9"]
    overrides += ["budget.epochs=null", f"budget.steps={STEPS}", "eval.every_epochs=null", "cluster.gradient_s=0.01"]
    simulation = Simulation(configure(composed(overrides + OPTIONS.get(algo, []))).experiment)
    largest, asked = 0, 0

    def look() -> bool:
        nonlocal largest, asked
        asked += 1
        if asked % max(1, nodes // 8) == 0:
            storages = {vector.untyped_storage().data_ptr(): vector for vector in live_vectors(simulation)}
            largest = max(largest, sum(vector.untyped_storage().nbytes() for vector in storages.values()))
        return False

    list(simulation.run(look))
    machine = simulation.machine
    modules = sum(type(item) is type(simulation.problem.module) for item in gc.get_objects())
    sent = sum(machine.network.bytes_sent(machine.loop.now))
    into.put((largest, sent, simulation.problem.dimension, modules))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--model", default="resnet8")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    print("| `algo=` | memory (vectors per node) | sent (vectors per node and step) | modules |\n|---|---:|---:|---:|")
    for algo in ALGORITHMS:
        queue = context.Queue()
        process = context.Process(target=measure, args=(algo, options.nodes, options.model, queue))
        process.start()
        memory, sent, dimension, modules = queue.get(timeout=600)
        process.join()
        vectors = 4 * dimension * options.nodes
        print(f"| `{algo}` | {memory / vectors:.2f} | {sent / vectors / STEPS:.3f} | {modules} |", flush=True)


if __name__ == "__main__":
    main()
