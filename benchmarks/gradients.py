"""How fast the simulator computes gradients: the evaluator that it chooses, over the loop, and what the goal is.

    python benchmarks/gradients.py [--cases resnet8 text ...] [--repeats 5]

Every way of a case runs in a process of its own with one thread, and they take turns; ratios are of medians of CPU
time, which other programs on the machine hardly change. A gradient is what the evaluator spends on it, reading its
batch included; an update is a gradient and its share of events, messages and optimiser. Evaluation is left out. The
peak is a product of two matrices by torch, in the same thread and type. bf16 is measured where the processor has AMX;
without, it is torch's, many times slower than fp32. The row of two cores is of wall time, and tells nothing where other
programs use them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NamedTuple

from users import FASHION_MNIST

IMPORTED = ["model=resnet8", "data=import", "data.target=users.fashion_mnist", "data.classes=10"]
COLOR = ["data=shapes", "data.resolution=32", "data.channels=3", "data.train_size=512", "data.test_size=16"]
LARGE = ["data=shapes", "data.resolution=64", "data.channels=3", "data.train_size=256", "data.test_size=16"]
OWN = ["data=import", "data.target=users.color_images", "data.classes=10", "model=import"]
TEXT = ["experiment=text_small", "schedule=constant", "target.loss=null"]
ENDLESS = ["budget.epochs=null", "budget.steps=null", "budget.time_s=1e9", "eval.every_epochs=null"]
ENDLESS += ["eval.every_steps=null", "eval.train_samples=16", "cluster.gradient_s=0.01", "engine=sim"]
LOOP = ["engine.gradients=loop"]
BF16 = ["precision=bf16"]
PEAK = 1024  # rows and columns of its matrices


class Goal(NamedTuple):
    """A way of a case, what its speed is a ratio to, and the goal of the ratio. whole: of updates, not of gradients."""

    way: str
    over: str
    goal: str
    whole: bool = False


@dataclass(frozen=True)
class Case:
    """A network on data. ways: the further overrides of each, by name. steps: of each worker in a repetition."""

    name: str
    overrides: Sequence[str]
    ways: dict[str, Sequence[str]]
    goals: Sequence[Goal]
    steps: int = 1


def against_loop(name: str, overrides: Sequence[str], *goals: Goal, steps: int = 1) -> Case:
    """Return a case of the ways that its goals name: the loop, the evaluator chosen, and the one chosen for bf16."""
    ways = {"loop": LOOP, "chosen": [], "bf16": BF16}
    needed = {way for goal in goals for way in (goal.way, goal.over)}
    return Case(name, overrides, {way: more for way, more in ways.items() if way in needed}, goals, steps)


def recorded(name: str, overrides: Sequence[str], steps: int, sync: float, dpsgd: float) -> dict[str, Case]:
    """Return the cases of whole updates whose ratios stood in docs/explanation/fast_simulator.md before."""
    return {
        f"{overrides[0].partition('=')[2]}_{algo}": against_loop(
            f"{name}, `{algo}`",
            [*overrides, f"algo={algo}"],
            Goal("chosen", "loop", f"{before:g} before", whole=True),
            steps=steps,
        )
        for algo, before in (("sync", sync), ("dpsgd", dpsgd))
    }


FASHION = "Fashion-MNIST" if FASHION_MNIST.is_dir() else "images like Fashion-MNIST"
CASES = {
    "imported": against_loop(
        f"ResNet-8, {FASHION} 28 x 28 by `data=import`, batch 32",
        [*IMPORTED, "nodes=4", "batch_size=32"],
        Goal("chosen", "loop", ">= 2"),
        Goal("bf16", "chosen", ">= 3"),
    ),
    **{
        f"resnet20_{batch}": against_loop(
            f"ResNet-20, 32 x 32 x 3, batch {batch}",
            ["model=resnet20", *COLOR, "nodes=2", f"batch_size={batch}"],
            Goal("chosen", "loop", ">= 2"),
            Goal("bf16", "loop", ">= 5"),
        )
        for batch in (32, 128)
    },
    "resnet18": against_loop(
        "ResNet-18, 64 x 64 x 3, batch 32",
        ["model=resnet18", *LARGE, "nodes=2", "batch_size=32"],
        Goal("chosen", "loop", ">= 1.3"),
    ),
    "text": against_loop("GPT of docs/howto/text.md, 4 windows of 32", TEXT, Goal("chosen", "loop", ">= 2"), steps=5),
    "text_1": against_loop(
        "the same, 1 window of 32", [*TEXT, "batch_size=1"], Goal("chosen", "loop", "3.40 before", True), steps=10
    ),
    "text_16": against_loop(
        "the same, 16 windows of 64",
        [*TEXT, "batch_size=16", "data.context=64"],
        Goal("chosen", "loop", "0.94 before", True),
    ),
    "own": against_loop(
        "own ConvNet with GroupNorm, GELU, dropout, residuals, own images 32 x 32 x 3, batch 32",
        [*OWN, "model.target=users.ConvNet", "nodes=4", "batch_size=32"],
        Goal("chosen", "loop", ">= 2"),
    ),
    **recorded("MLP, digits, 32 workers", ["model=mlp", "data=digits", "nodes=32"], 20, 7.92, 5.32),
    **recorded("ResNet-8, digits 8 x 8, 32 workers", ["model=resnet8", "data=digits", "nodes=32"], 3, 5.77, 4.93),
    **recorded("ResNet-20, 32 x 32 x 3, 16 workers", ["model=resnet20", *COLOR, "nodes=16"], 1, 1.53, 1.54),
    "peak": Case(
        "convolutions of ResNet-20, batch 32: share of the peak",
        ["model=import", "model.target=users.Convolutions", *COLOR, "data.classes=10", "nodes=2", "batch_size=32"],
        {"chosen": [], "bf16": BF16},
        [Goal("chosen", "peak", ">= 60 %"), Goal("bf16", "peak", "shown")],
    ),
    "cores": Case(
        "ResNet-8, 28 x 28, 8 workers: two cores over one, wall time",
        ["model=resnet8", "data=shapes", "data.resolution=28", "nodes=8", "batch_size=32"],
        {"one core": [], "two cores": []},
        [Goal("two cores", "one core", ">= 1.8")],
        steps=3,
    ),
}


class Told(NamedTuple):
    """Seconds of an update and of its gradient, and of the peak's product of matrices."""

    update_s: float
    gradient_s: float
    peak_s: float


def child(case: Case, way: str, pipe: Connection) -> None:
    """Tell what was chosen, the samples and operations of a gradient, and, whenever asked, what some steps took."""
    import torch

    from dsgd.cli.compose import composed
    from dsgd.engines.sim.simulation import Simulation
    from dsgd.gradients.choice import multiply_adds
    from dsgd.gradients.evaluators import PendingGradient
    from dsgd.runner.configuration import configure

    torch.set_num_threads(1)
    cores = 2 if way == "two cores" else 1
    clock = time.perf_counter if "core" in way else time.thread_time
    experiment = configure(composed([*case.overrides, *case.ways[way], *ENDLESS])).experiment
    simulation = Simulation(experiment, cores=cores)
    evaluator, updates = simulation.machine.evaluator, case.steps * experiment.nodes
    evaluate, inside_s = evaluator.evaluate, 0.0
    matrix = torch.rand(PEAK, PEAK, dtype=torch.bfloat16 if way == "bf16" else torch.float32)

    def timed(pending: Sequence[PendingGradient]) -> None:
        nonlocal inside_s
        begin = clock()
        evaluate(pending)
        inside_s += clock() - begin

    def peak_s() -> float:
        begin = clock()
        torch.mm(matrix, matrix)
        return clock() - begin

    evaluator.evaluate = timed
    # forward, and backward by weights and by inputs, of which the first convolution has none: a hundredth of ResNet-20
    pipe.send((simulation.chosen.name, experiment.batch_size, 6 * multiply_adds(simulation.problem)))
    while pipe.recv():
        goal = simulation.machine.samples + updates * experiment.batch_size
        begin, inside_s = clock(), 0.0
        list(simulation.run(lambda goal=goal: simulation.machine.samples >= goal))
        pipe.send(Told((clock() - begin) / updates, inside_s / updates, min(peak_s() for _ in range(3))))


def measure(case: Case, repeats: int) -> list[str]:
    """Return the rows of a case."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = dict[str, Connection](), []
    for way in case.ways:
        pipes[way], theirs = context.Pipe()
        processes.append(context.Process(target=child, args=(case, way, theirs)))
        processes[-1].start()
    about = {way: pipe.recv() for way, pipe in pipes.items()}
    measured = [way for way in pipes if way != "bf16" or about[way][0] == "compiled"]
    told: dict[str, list[Told]] = {way: [] for way in measured}
    for repeat in range(repeats + 1):
        for way in measured if repeat % 2 else reversed(measured):
            pipes[way].send(True)
            answer = pipes[way].recv()
            if repeat:  # the first round is there to warm up
                told[way].append(answer)
    for pipe in pipes.values():
        pipe.send(False)
    for process in processes:
        process.join()
    medians = {way: Told(*map(statistics.median, zip(*answers, strict=True))) for way, answers in told.items()}
    return [row(case.name, goal, about, medians) for goal in case.goals]


def row(name: str, goal: Goal, about: dict[str, tuple[str, int, int]], medians: dict[str, Told]) -> str:
    evaluator, samples, operations = about[goal.way]
    kind = f"{goal.way} / {goal.over}{', updates' if goal.whole else ''}"
    if goal.way not in medians:
        return f"| {name} | {kind} | {goal.goal} | needs AMX | | | |"
    seconds = medians[goal.way].update_s if goal.whole else medians[goal.way].gradient_s
    if goal.over == "peak":
        peak = 2 * PEAK**3 / medians[goal.way].peak_s
        share, reached = operations / seconds / peak, f"{peak / 1e9:,.0f} GFLOP/s"
        rate = f"{samples / seconds:,.0f} ({operations / seconds / 1e9:,.0f} GFLOP/s)"
        cells = (f"{100 * share:.0f} %", evaluator, rate, reached)
    else:
        other = medians[goal.over]
        other_s = other.update_s if goal.whole else other.gradient_s
        cells = (f"{other_s / seconds:.2f}", evaluator, f"{samples / seconds:,.0f}", f"{samples / other_s:,.0f}")
    return f"| {' | '.join([name, kind, goal.goal, *cells])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"medians of {options.repeats}; load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| case | ratio of | goal | measured | evaluator | samples/s | samples/s of the other, or the peak |")
    print("|---|---|---:|---:|---|---:|---:|")
    for name in options.cases:
        print(*measure(CASES[name], options.repeats), sep="\n", flush=True)


if __name__ == "__main__":
    main()
