"""Compare dsgd's algorithms with other people's implementations, gradient by gradient.

    pip install '.[crosscheck]'                       # torchft, fairscale, Decent-DP
    git clone https://github.com/epfml/relaysgd       # and the other repositories in REPOSITORIES
    python benchmarks/crosscheck.py --checkouts .

Processes of the other implementation, and as many real workers of dsgd, train a network from the same parameters on the
same batches, in double precision. One line for each case: the largest difference of a parameter at which any worker
took any gradient, as a part of the largest parameter. It ends with status 1 if one is beyond 1e-10.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.support

from counterparts.codes import choco, reducer
from counterparts.gossip_push import push
from counterparts.outer_steps import gym_diloco, noloco
from counterparts.relaysgd import relaysgd
from counterparts.torch_packages import decent_dpsgd, fairscale_slowmo, torchft_diloco
from counterparts.training import COUNTERPARTS, Counterpart, Steps, Training, carry_out, points

from tests.support.prefork import Prefork
from tests.support.simulate import experiment
from tests.support.watched_algorithms import observed

TOLERANCE = 1e-10
# where a repository has what is imported
REPOSITORIES = {
    "relaysgd": ("https://github.com/epfml/relaysgd", "."),
    "stochastic_gradient_push": ("https://github.com/facebookresearch/stochastic_gradient_push", "."),
    "noloco": ("https://github.com/gensyn-ai/noloco", "src"),
    "gym": ("https://github.com/exo-explore/gym", "."),
    "powersgd": ("https://github.com/epfml/powersgd", "paper-code"),
    "ChocoSGD": ("https://github.com/epfml/ChocoSGD", "dl_code"),
}
PACKAGES = {"torch": "torch", "torchft": "torchft", "fairscale": "fairscale", "decent_dp": "decent-dp"}

# The first layer and the others have equally many parameters: torchft's fragments are layers, dsgd's are halves.
KEYS = ("precision=fp64", "model.hidden=[18,40]", "batch_size=8", "budget.epochs=null", "budget.steps=24")
KEYS += ("eval.every_epochs=null", "eval.every_steps=24", "eval.train_samples=8")
# Every pixel has noise, and no unit dies: no entry of a gradient is 0, which has no sign.
NEVER_ZERO = ("data=shapes", "data.resolution=8", "data.noise=0.2", "model.hidden=[]")
ADAMW, SGD = ("optimizer=adamw", "optimizer.lr=0.003"), ("optimizer.lr=0.1", "optimizer.momentum=0.9")
PLAIN = ("optimizer.lr=0.1", "optimizer.momentum=0")
TWO, FOUR = "nodes=2", "nodes=4"


@dataclass(frozen=True)
class Case:
    """dsgd's algorithm and its keys beside a counterpart of an implementation: a package or a repository."""

    name: str
    implementation: str
    counterpart: Counterpart
    algo: str
    keys: tuple[str, ...]


CASES = [
    Case("powersgd", "torch", COUNTERPARTS["power_sgd"], "compressed", (TWO, *SGD, "algo.rank=2")),
    Case("localsgd", "torch", COUNTERPARTS["periodic_averager"], "localsgd", (TWO, *SGD, "algo.tau=5")),
    Case("post-local", "torch", COUNTERPARTS["post_local"], "localsgd", (TWO, *SGD, "algo.tau=5", "algo.switch=5")),
    Case("diloco", "torchft", torchft_diloco, "diloco", (TWO, *ADAMW, "algo.tau=6")),
    Case("diloco", "gym", gym_diloco, "diloco", (FOUR, *ADAMW, "algo.tau=6")),
    Case(
        "streaming",
        "torchft",
        torchft_diloco,
        "streaming",
        (TWO, *ADAMW, "algo.tau=8", "algo.fragments=2", "algo.delay=2"),
    ),
    Case(
        "slowmo",
        "fairscale",
        fairscale_slowmo,
        "diloco",
        (TWO, *SGD, "algo.tau=6", "algo.outer=slowmo", "algo.olr=1", "algo.beta=0.5"),
    ),
    Case("noloco", "noloco", noloco, "noloco", (FOUR, *ADAMW, "algo.tau=6", "algo.olr=0.7", "algo.gamma=0.7")),
    Case("dpsgd", "relaysgd", relaysgd("gossip", "ring", overlap_communication=True), "dpsgd", (FOUR, *SGD)),
    Case("dpsgd, first", "relaysgd", relaysgd("gossip", "ring"), "dpsgd", (FOUR, *SGD, "algo.gradient=first")),
    Case("dpsgd", "decent_dp", decent_dpsgd, "dpsgd", (FOUR, *SGD, "optimizer.lr=0.02", "topology=complete")),
    Case("sgp", "relaysgd", relaysgd("push-sum", "exponential"), "sgp", (FOUR, *SGD, "topology=one_peer_exponential")),
    Case("sgp", "stochastic_gradient_push", push, "sgp", (FOUR, *SGD, "topology=one_peer_exponential")),
    Case(
        "sgp, overlap",
        "stochastic_gradient_push",
        push,
        "sgp",
        (FOUR, *SGD, "topology=one_peer_exponential", "algo.overlap=1"),
    ),
    Case("relay", "relaysgd", relaysgd("relaysum-model", "chain"), "relay", (FOUR, *SGD)),
    Case("d2", "relaysgd", relaysgd("d2", "ring"), "corrected", (FOUR, *SGD, "algo.method=d2")),
    Case(
        "tracking",
        "relaysgd",
        relaysgd("gradient-tracking", "ring"),
        "corrected",
        (FOUR, *SGD, "algo.method=tracking"),
    ),
    Case(
        "quasi-global",
        "relaysgd",
        relaysgd("quasi-global-momentum", "ring"),
        "corrected",
        (FOUR, *PLAIN, "algo.method=qg"),
    ),
    Case(
        "topk",
        "powersgd",
        reducer("TopKReducer"),
        "compressed",
        (FOUR, *SGD, "algo.code=topk", "algo.share=0.05"),
    ),
    Case(
        "randomk",
        "powersgd",
        reducer("UniformRandomSparseReducer"),
        "compressed",
        (FOUR, *SGD, "algo.code=randomk", "algo.share=0.05"),
    ),
    Case("sign", "powersgd", reducer("SignAndNormReducer"), "compressed", (FOUR, *SGD, *NEVER_ZERO, "algo.code=sign")),
    Case(
        "choco, topk",
        "ChocoSGD",
        choco("compress_top_k"),
        "choco",
        (FOUR, *SGD, "algo.order=code", "algo.compressor=topk", "algo.share=0.05", "algo.gamma=0.3"),
    ),
    Case(
        "choco, sign",
        "ChocoSGD",
        choco("sign"),
        "choco",
        (FOUR, *SGD, *NEVER_ZERO, "algo.order=code", "algo.compressor=sign"),
    ),
]


def located(case: Case, checkouts: Path) -> tuple[Path | None, str]:
    """Return the folder to import the implementation from, and its version; "" for one that is missing."""
    if case.implementation in PACKAGES:
        is_there = find_spec(case.implementation) is not None
        return None, version(PACKAGES[case.implementation]) if is_there else ""
    root = checkouts / case.implementation
    if not root.is_dir():
        return None, ""
    line = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()
    return (root / REPOSITORIES[case.implementation][1]).resolve(), commit


def importing(folder: Path | None, counterpart: Counterpart) -> Callable[[Training], Steps]:
    """Return a counterpart that imports from a folder, in a process of its own."""

    def steps(training: Training) -> Steps:
        if folder is not None:
            sys.path.insert(0, str(folder))
        torch.set_default_dtype(torch.float64)
        yield from counterpart(training)

    return steps


def difference(prefork: Prefork, folder: Path, case: Case, source: Path | None) -> float:
    """Train both; return the largest difference, NaN where the other implementation fails."""
    keys = (*KEYS, *case.keys)
    configured = experiment(f"algo={case.algo}", *keys)
    if carry_out(folder / "theirs", {"case": (importing(source, case.counterpart), configured)}):
        return float("nan")
    theirs = points(folder / "theirs" / "case", configured.nodes)
    options = (*observed(case.algo, folder), "+algo.points=true", *keys, "engine=dist", "engine.patience_s=60")
    run = prefork.start(folder / "run", *options)
    if run.wait():
        sys.exit(run.err)
    ours = np.stack([np.load(folder / f"points {rank}.npy") for rank in range(configured.nodes)])
    return float(np.abs(ours - theirs).max() / np.abs(ours).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkouts", type=Path, default=Path(), help="folder with the repositories that were cloned")
    parser.add_argument("cases", nargs="*", help="names of cases; all where none is given")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    logging.disable(logging.WARNING)
    beyond, prefork = False, Prefork()
    print(f"{'case':<16}{'implementation':<28}{'version':<12}{'difference':>10}")
    with tempfile.TemporaryDirectory(prefix="crosscheck-") as folder:
        for number, case in enumerate(CASES):
            if arguments.cases and case.name not in arguments.cases:
                continue
            source, found = located(case, arguments.checkouts)
            label = f"{case.name:<16}{case.implementation:<28}"
            if not found:
                url = REPOSITORIES.get(case.implementation, ("",))[0]
                print(f"{label}needs: {f'git clone {url}' if url else 'pip install ' + PACKAGES[case.implementation]}")
                continue
            largest = difference(prefork, Path(folder) / str(number), case, source)
            beyond |= not largest <= TOLERANCE
            print(f"{label}{found:<12}{largest:>10.1e}", flush=True)
    prefork.close()
    sys.exit(f"beyond the tolerance of {TOLERANCE:g}" if beyond else 0)


if __name__ == "__main__":
    main()
