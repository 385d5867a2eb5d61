"""How fast the simulator trains with each way to evaluate gradients: updates a second, against one after the other.

    python benchmarks/stacked.py [--threads 1 2] [--repeats 5] [--cases mlp resnet8 resnet20]

Every way runs in a process of its own, and they take turns. An update is one step of one worker: gradient, message,
event, optimiser; evaluation is left out. Medians, ratios of medians to `loop`. Memory: the process's peak over what it
had before the run began.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import time
from multiprocessing.connection import Connection

CASES = {
    "mlp": ("MLP, digits, 32 workers", 20, ["model=mlp", "data=digits", "nodes=32"]),
    "resnet8": ("ResNet-8, digits 8 x 8, 32 workers", 3, ["model=resnet8", "data=digits", "nodes=32"]),
    "resnet20": (
        "ResNet-20, 32 x 32, 16 workers",
        1,
        [
            "model=resnet20",
            "data=shapes",
            "data.resolution=32",
            "data.channels=3",
            "data.train_size=512",
            "data.test_size=16",
            "nodes=16",
        ],
    ),
}
WAYS = ("loop", "vmap", "stacked")
ENDLESS = ["algo=dpsgd", "budget.epochs=null", "budget.time_s=1e9", "eval.every_epochs=null", "eval.train_samples=16"]


def child(case: str, way: str, threads: int, pipe: Connection) -> None:
    """Run on for some steps of every worker whenever asked; answer with seconds per update and bytes."""
    import torch

    from dsgd.cli.build import build_experiment
    from dsgd.cli.compose import composed
    from dsgd.sim.simulation import Simulation

    torch.set_num_threads(threads)
    _, steps, overrides = CASES[case]
    experiment = build_experiment(composed([*overrides, *ENDLESS, "engine=sim", f"engine.gradients={way}"])[0])
    simulation = Simulation(experiment)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    updates = steps * experiment.nodes
    while pipe.recv():
        goal = simulation.machine.samples + updates * experiment.batch_size
        begin = time.perf_counter()
        list(simulation.run(lambda goal=goal: simulation.machine.samples >= goal))
        seconds = time.perf_counter() - begin
        pipe.send((seconds / updates, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))


def measured(case: str, threads: int, repeats: int) -> dict[str, tuple[float, float]]:
    """Median seconds per update, and KiB, of each way."""
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    processes = []
    for way in WAYS:
        pipes[way], theirs = context.Pipe()
        processes.append(context.Process(target=child, args=(case, way, threads, theirs)))
        processes[-1].start()
    for repeat in range(repeats + 1):
        for way in WAYS if repeat % 2 else reversed(WAYS):
            pipes[way].send(True)
            answer = pipes[way].recv()
            if repeat:  # the first round is there to warm up
                found[way].append(answer)
    for pipe in pipes.values():
        pipe.send(False)
    for process in processes:
        process.join()
    return {way: (statistics.median(s for s, _ in of), max(kib for _, kib in of)) for way, of in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args()
    print(f"medians of {options.repeats} rounds\n")
    print("| case | threads | gradients | updates/s | against loop | memory, MiB |\n|---|---:|---|---:|---:|---:|")
    for case in options.cases:
        for threads in options.threads:
            found = measured(case, threads, options.repeats)
            for way, (seconds, kib) in found.items():
                cells = (CASES[case][0], threads, way, f"{1 / seconds:,.0f}", f"{found['loop'][0] / seconds:.2f}")
                print(f"| {' | '.join(map(str, cells))} | {kib / 1024:.0f} |", flush=True)


if __name__ == "__main__":
    main()
