"""One task of local SGD on dsgd and on other simulators, in environments of their own: gradients per second of CPU.

    python -m venv pfl && pfl/bin/pip install pfl torch
    python -m venv flower && flower/bin/pip install 'flwr[simulation]' torch
    python -m venv gossipy && gossipy/bin/pip install git+https://github.com/makgyver/gossipy
    python benchmarks/simulators.py --pfl pfl/bin/python --flower flower/bin/python --gossipy gossipy/bin/python

8 workers, an MLP of 64-64-10 on digits, batches of 16, 20 steps between two averages, one thread. All have the same
start and the same batches in the same order, so the test losses of the mean model agree to rounding; a program whose
loss differs from dsgd's by more has trained something else, and ends the benchmark. dsgd runs twice: with its compiled
gradients, and with PyTorch's, as the others. Each program trains for some rounds and for three times as
many: from the difference follow its gradients per CPU second without start-up, from the longer run those with it. The
CPU time counts the program and all processes that it starts.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

WORKERS, BATCH, TAU, LR = 8, 16, 20, 0.1
OTHERS, ROUNDING = ("pfl", "flower", "gossipy"), 1e-3
PR_SET_CHILD_SUBREAPER = 36
HERE = Path(__file__).parent / "counterparts"
OVERRIDES = (
    "algo=localsgd", f"algo.tau={TAU}", f"nodes={WORKERS}", "model=mlp", "data=digits", f"batch_size={BATCH}",
    f"optimizer.lr={LR}", "budget.epochs=null", "eval.every_epochs=null", "cluster.gradient_s=0.01", "engine=sim",
    "engine.threads=1",
)  # fmt: skip


def write_task(path: Path, rounds: int) -> None:
    """Write the start, the batches of every worker [workers, steps, batch, 64] and the test set, as dsgd has them."""
    from dsgd.cli.compose import composed
    from dsgd.problem.problem import build_problem
    from dsgd.runner.configuration import configure

    problem = build_problem(configure(composed([*OVERRIDES, f"budget.steps={rounds * TAU}"])).experiment)
    made = [[problem.data.batch(rank, step) for step in range(rounds * TAU)] for rank in range(WORKERS)]
    inputs = np.stack([[batch.flatten(1).numpy() for batch, _ in own] for own in made])
    labels = np.stack([[of_batch.numpy() for _, of_batch in own] for own in made])
    test_inputs, test_labels = problem.data.test_set
    start = {name: value.numpy() for name, value in problem.module.state_dict().items()}
    w1, b1, w2, b2 = start.values()
    of_test = {"test_inputs": test_inputs.flatten(1).numpy(), "test_labels": test_labels.numpy()}
    np.savez(path, allow_pickle=False, inputs=inputs, labels=labels, w1=w1, b1=b1, w2=w2, b2=b2, **of_test)


def cpu_and_loss(command: list[str], task: Path, rounds: int) -> tuple[float, float]:
    """Return the CPU seconds of a command and its descendants, and the loss that it prints last."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TASK": str(task), "ROUNDS": str(rounds)}
    printed = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if printed.returncode:
        raise SystemExit(f"{command[:2]} failed:\n{printed.stderr[-2000:]}")
    while True:  # descendants that were left behind are ours now
        try:
            os.wait()
        except ChildProcessError:
            break
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    loss = json.loads(printed.stdout.strip().splitlines()[-1])["loss"]
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in OTHERS:
        parser.add_argument(f"--{name}", help="Python of an environment that has it")
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    few, many = options.rounds, 3 * options.rounds
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder, "task.npz")
        write_task(task, many)
        programs = {
            "dsgd": [sys.executable, "dsgd"],
            "dsgd, PyTorch": [sys.executable, "dsgd", "engine.gradients=loop"],
        }
        programs |= {name: [getattr(options, name), name] for name in OTHERS if getattr(options, name)}
        first: float | None = None
        print("| simulator | gradients per CPU second | with start-up | start-up (CPU s) | test loss |")
        print("|---|---:|---:|---:|---:|")
        for name, (python, program, *words) in programs.items():
            command = [python, str(HERE / f"local_sgd_by_{program}.py"), *words]
            (short, _), (long, loss) = (cpu_and_loss(command, task, each) for each in (few, many))
            first = loss if first is None else first
            if abs(loss / first - 1) > ROUNDING:
                raise SystemExit(f"{name} trained another task: its test loss is {loss:.6f}, dsgd's {first:.6f}")
            made = WORKERS * TAU * (many - few)
            cells = (name, f"{made / (long - short):,.0f}", f"{1.5 * made / long:,.0f}")
            print(f"| {' | '.join(cells)} | {long - 1.5 * (long - short):.1f} | {loss:.6f} |", flush=True)


if __name__ == "__main__":
    main()
