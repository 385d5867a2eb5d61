"""How fast the simulator trains with each way to evaluate gradients: updates a second, against one after the other.

    python benchmarks/stacked.py [--threads 1 2] [--repeats 5] [--cases mlp resnet8 resnet20] [--algorithms sync dpsgd]

Every way runs in a process of its own, and they take turns. An update is one step of one worker: gradient, message,
event, optimiser; evaluation is left out. Medians, ratios of medians to `loop`. Outside: the share of the time that is
not spent in the evaluator of gradients. Events: the time that the same updates take without any arithmetic, as a share
of that time. Memory: the process's peak over what it had before it loaded data and model.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import resource
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

TEXT = ("model=gpt", "data=text", "data.context=32", "optimizer=adamw")
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
    "gpt": ("GPT, text, 8 windows of 32 bytes, 8 workers", 5, [*TEXT, "batch_size=8", "nodes=8"]),
    "gpt1": ("GPT, text, 1 window of 32 bytes, 8 workers", 20, [*TEXT, "batch_size=1", "nodes=8"]),
    "gpt16": (
        "GPT, text, 16 windows of 64 bytes, 8 workers",
        2,
        [*TEXT, "batch_size=16", "data.context=64", "nodes=8"],
    ),
}
WAYS = ("loop", "stacked", "compiled", "none")
ENDLESS = ["budget.epochs=null", "budget.time_s=1e9", "eval.every_epochs=null", "eval.train_samples=16"]
ENDLESS += ["cluster.gradient_s=0.01"]


def child(case: str, algo: str, way: str, threads: int, pipe: Connection) -> None:
    """Run on for some steps of every worker whenever asked; answer with seconds per update, the share of them outside
    the evaluator, and KiB. None where this way cannot serve the model."""
    import torch

    from dsgd.cli.compose import composed
    from dsgd.gradients.pending import PendingGradient
    from dsgd.run.configuration import configure
    from dsgd.sim.simulation import Simulation

    torch.set_num_threads(threads)
    _, steps, overrides = CASES[case]
    experiment = configure(
        composed([*overrides, *ENDLESS, f"algo={algo}", "engine=sim", f"engine.gradients={way}"])
    ).experiment
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    simulation = Simulation(experiment)
    taken = simulation.chosen.name
    updates = steps * experiment.nodes
    evaluator = simulation.machine.evaluator
    evaluate, inside_s = evaluator.evaluate, 0.0

    def timed(pending: Sequence[PendingGradient]) -> None:
        nonlocal inside_s
        begin = time.perf_counter()
        evaluate(pending)
        inside_s += time.perf_counter() - begin

    evaluator.evaluate = timed
    while pipe.recv():
        goal = simulation.machine.samples + updates * experiment.batch_size
        begin, inside_s = time.perf_counter(), 0.0
        list(simulation.run(lambda goal=goal: simulation.machine.samples >= goal))
        seconds = time.perf_counter() - begin
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        pipe.send((seconds / updates, 1 - inside_s / seconds, memory) if taken == way else None)


def measured(case: str, algo: str, threads: int, repeats: int) -> dict[str, tuple[float, float, float]]:
    """Of each way the medians of what `child` answers, and the largest memory."""
    context = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
    processes = []
    for way in WAYS:
        pipes[way], theirs = context.Pipe()
        processes.append(context.Process(target=child, args=(case, algo, way, threads, theirs)))
        processes[-1].start()
    for repeat in range(repeats + 1):
        for way in WAYS if repeat % 2 else reversed(WAYS):
            pipes[way].send(True)
            answer = pipes[way].recv()
            if repeat and answer:  # the first round is there to warm up
                found[way].append(answer)
    for pipe in pipes.values():
        pipe.send(False)
    for process in processes:
        process.join()
    columns = {way: tuple(zip(*answers, strict=True)) for way, answers in found.items()}
    columns = {way: numbers for way, numbers in columns.items() if numbers}  # a way that cannot serve took another
    return {way: (statistics.median(s), statistics.median(o), max(kib)) for way, (s, o, kib) in columns.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--algorithms", nargs="+", default=["sync", "dpsgd"])
    options = parser.parse_args()
    print(f"medians of {options.repeats} rounds\n")
    print("| case | algorithm | threads | gradients | updates/s | of loop | outside, % | events, % | memory, MiB |")
    print("|---|---|---:|---|---:|---:|---:|---:|---:|")
    for case, algo, threads in itertools.product(options.cases, options.algorithms, options.threads):
        found = measured(case, algo, threads, options.repeats)
        events_s, _, _ = found.pop("none")
        for way, (seconds, outside, kib) in found.items():
            ratio = found["loop"][0] / seconds
            shares = (f"{100 * outside:.1f}", f"{100 * events_s / seconds:.1f}")
            numbers = (f"{1 / seconds:,.0f}", f"{ratio:.2f}", *shares, f"{kib / 1024:.0f}")
            print(f"| {' | '.join([CASES[case][0], algo, str(threads), way, *numbers])} |", flush=True)


if __name__ == "__main__":
    main()
