"""Is the simulator slower than at an earlier commit? CPU time of an update, now over then, in turns on one machine.

    python benchmarks/commits.py f59cb90
    python benchmarks/commits.py f59cb90 --cases mlp_sync text_1

The earlier commit is installed in a folder of its own, kernels included, and uses the same torch. Each of the four
processes (now and then, the evaluator that a run chooses and `loop`) has one thread. Of `--rounds` the fastest counts:
what else the machine does only makes a round slower. Unlike a ratio to `loop`, a ratio to an earlier commit does not
depend on how fast torch is on a machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gradients import ENDLESS, LOOP, TEXT

ROOT = Path(__file__).parents[1]
CASES = {
    f"{model}_{algo}": (steps, [f"model={model}", "data=digits", "nodes=32", f"algo={algo}"])
    for model, steps in (("mlp", 20), ("resnet8", 3))
    for algo in ("sync", "dpsgd")
}
CASES["text_1"] = (10, [*TEXT, "batch_size=1"])

# for both commits: how a simulation is made has changed between them
CHILD = """
import inspect, sys, time
import torch
torch.set_num_threads(1)
from dsgd.cli.compose import composed
from dsgd.runner.configuration import configure
from dsgd.engines.sim.simulation import Simulation
updates, overrides = int(sys.argv[1]), sys.argv[2:]
experiment = configure(composed(overrides)).experiment
one_core = {"cores": 1} if "cores" in inspect.signature(Simulation).parameters else {}
simulation = Simulation(experiment, **one_core)
updates *= experiment.nodes
print("ready", flush=True)
for line in sys.stdin:
    goal = simulation.machine.samples + updates * experiment.batch_size
    begin = time.thread_time()
    list(simulation.run(lambda: simulation.machine.samples >= goal))
    print((time.thread_time() - begin) / updates, flush=True)
"""


def install(commit: str, folder: Path) -> Path:
    """Install a commit, without what it depends on. Return where."""
    clone, packages = folder / "clone", folder / "packages"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    subprocess.run(["git", "-C", clone, "checkout", "--quiet", commit], check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", packages, clone], check=True)
    return packages


def child(path: Path, steps: int, overrides: list[str]) -> subprocess.Popen[str]:
    """Start a process that imports dsgd from a path."""
    environment = os.environ | {"PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", CHILD, str(steps), *overrides, *ENDLESS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(line, env=environment, cwd=path, **pipes)


def measure(name: str, then: Path, rounds: int) -> str:
    """Return the row of a case."""
    steps, overrides = CASES[name]
    ways = [(path, way) for path in (then, ROOT) for way in ((), tuple(LOOP))]
    children = {key: child(key[0], steps, [*overrides, *key[1]]) for key in ways}
    told: dict[tuple[Path, tuple[str, ...]], list[float]] = {key: [] for key in ways}
    for process in children.values():
        assert process.stdout is not None
        process.stdout.readline()
    for i in range(rounds + 1):
        for key in ways if i % 2 else reversed(ways):
            process = children[key]
            assert process.stdin is not None
            assert process.stdout is not None
            print(file=process.stdin, flush=True)
            seconds = float(process.stdout.readline())
            if i:  # the first round is there to warm up
                told[key].append(seconds)
    for process in children.values():
        process.communicate()
    s = {key: min(seconds) for key, seconds in told.items()}
    old, old_loop, now, now_loop = (s[key] for key in ways)
    cells = (f"{old / now:.2f}", f"{old_loop / now_loop:.2f}", f"{old_loop / old:.2f}", f"{now_loop / now:.2f}")
    return f"| {' | '.join([name, *cells])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        then = install(options.commit, Path(folder))
        print("| case | speed now / then | speed of `loop` now / then | chosen / loop then | chosen / loop now |")
        print("|---|---:|---:|---:|---:|")
        for name in options.cases:
            print(measure(name, then, options.rounds), flush=True)


if __name__ == "__main__":
    main()
