"""Memory of a simulation, in vectors of d parameters per node.

    python benchmarks/memory.py [--nodes 8 32] [--model resnet8]

A node needs its vector, its momentum, one gradient (or the snapshot it will be taken at), the algorithm's own vectors
and the messages in flight, which are shared and not copied for each receiver. The table gives the peak of tensor memory
over nodes times the bytes of one vector, and the number of module objects, each taken in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys

ALGORITHMS = ("sync", "easgd", "downpour", "gossip", "dpsgd", "delayfree")


def peak(algo: str, nodes: int, model: str, into: multiprocessing.Queue) -> None:
    """Run a few steps; report the largest sum of bytes of all live vectors between two events, d, and module
    objects."""
    import torch

    from dsgd.cli.compose import composed
    from dsgd.engines.sim.checkpoint import live_vectors
    from dsgd.engines.sim.simulation import Simulation
    from dsgd.runner.configuration import configure

    torch.set_num_threads(1)
    overrides = [f"algo={algo}", f"nodes={nodes}", f"model={model}", "batch_size=4", "optimizer.momentum=0.9"]
    overrides += ["budget.epochs=null", "budget.steps=12", "eval.every_epochs=null", "cluster.gradient_s=0.01"]
    simulation = Simulation(configure(composed(overrides)).experiment)
    largest, asked = 0, 0

    def look() -> bool:
        nonlocal largest, asked
        asked += 1
        if asked % max(1, nodes // 8) == 0:
            storages = {vector.untyped_storage().data_ptr(): vector for vector in live_vectors(simulation)}
            largest = max(largest, sum(vector.untyped_storage().nbytes() for vector in storages.values()))
        return False

    list(simulation.run(look))
    modules = sum(type(item) is type(simulation.problem.module) for item in gc.get_objects())
    into.put((largest, simulation.problem.dimension, modules))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--model", default="resnet8")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    print(f"{options.model}: peak of live vectors per node over d (4 bytes each)")
    print(f"{'algo':>10} " + " ".join(f"{f'{nodes} nodes':>10}" for nodes in options.nodes) + "   modules")
    for algo in ALGORITHMS:
        cells, modules = [], 0
        for nodes in options.nodes:
            queue = context.Queue()
            process = context.Process(target=peak, args=(algo, nodes, options.model, queue))
            process.start()
            total, dimension, modules = queue.get(timeout=600)
            process.join()
            cells.append(f"{total / (4 * dimension * nodes):>10.2f}")
        print(f"{algo:>10} " + " ".join(cells) + f"   {modules}")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
