"""Do other people's implementations of the same algorithms make the same losses of the same batches?

    pip install torchft fairscale        # for three of the cases; without them the others are checked
    python benchmarks/crosscheck.py

Two real workers of dsgd, and two processes of the other implementation, train a network on digits from the same
parameters, in double precision. One line for each case: the largest difference of the output model's training loss
after any step, and that of the workers' parameters at the end, as a part of the largest. It ends with status 1 if one
is beyond 1e-10.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.nn.utils import parameters_to_vector

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.support

from tests.support.counterparts import COUNTERPARTS, Counterpart, Steps, Training, carry_out, left, losses
from tests.support.prefork import Prefork
from tests.support.simulate import experiment
from tests.support.watched_algorithms import observed, seen

# The first layer and the others have equally many parameters: torchft's fragments are layers, dsgd's are halves.
KEYS = (
    "precision=fp64",
    "nodes=2",
    "model.hidden=[18,40]",
    "batch_size=8",
    "budget.epochs=null",
    "eval.every_epochs=null",
)
KEYS += ("eval.every_steps=1", "eval.train_samples=200", "budget.steps=24")
ADAMW, SGD = ("optimizer=adamw", "optimizer.lr=0.003"), ("optimizer.lr=0.1", "optimizer.momentum=0.9")
SWITCHED = ("algo.tau=5", "algo.switch=5")
IN_TURN = ("algo.tau=8", "algo.fragments=2", "algo.delay=2")
SLOWMO = ("algo.tau=6", "algo.outer=slowmo", "algo.olr=1", "algo.beta=0.5")
TOLERANCE = 1e-10


def torchft_diloco(training: Training) -> Steps:
    """DiLoCo of torchft, and its streaming form: one fragment, or the first layer and the others."""
    from torchft.coordination import LighthouseServer  # pyright: ignore[reportMissingImports]
    from torchft.local_sgd import DiLoCo  # pyright: ignore[reportMissingImports]
    from torchft.manager import Manager  # pyright: ignore[reportMissingImports]
    from torchft.process_group import ProcessGroupGloo  # pyright: ignore[reportMissingImports]

    options, layers = training.algo, list(training.module.children())
    lighthouse = LighthouseServer("127.0.0.1:0", min_replicas=training.nodes) if training.rank == 0 else None
    address: list[str | None] = [None if lighthouse is None else lighthouse.address()]
    dist.broadcast_object_list(address)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        ProcessGroupGloo(),
        None,
        None,
        min_replica_size=training.nodes,
        use_async_quorum=False,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=address[0],
        replica_id=str(training.rank),
        port=0,
        hostname="127.0.0.1",
        init_sync=False,
    )
    count = getattr(options, "fragments", 1)
    fragments = [training.module] if count == 1 else [nn.Sequential(*layers[:2]), nn.Sequential(*layers[2:])]
    outer = [torch.optim.SGD(fragment.parameters(), options.olr, options.beta, nesterov=True) for fragment in fragments]
    inner = training.optimizer()
    streaming = {"fragment_sync_delay": options.delay, "fragment_update_alpha": options.mix} if count > 1 else {}
    with DiLoCo(manager, fragments, inner, outer, options.tau, **streaming) as rounds:
        for step in range(training.steps):
            training.backward(training.module, step)
            inner.step()
            kept = [fragment.original_parameters.values() for fragment in rounds._fragments]
            yield parameters_to_vector([part for of_one in kept for part in of_one]).clone()
    dist.barrier()
    manager.shutdown(wait=False)
    if lighthouse is not None:
        lighthouse.shutdown()


def fairscale_slowmo(training: Training) -> Steps:
    """SlowMo of fairscale, which by itself begins with what it finds after the first step, insists on single precision
    there, and waits for a GPU even where there is none."""
    warnings.simplefilter("ignore", FutureWarning)
    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda device=None: None
    from fairscale.experimental.nn.data_parallel import SlowMoDistributedDataParallel  # pyright: ignore[reportMissingImports]

    options, optimizer = training.algo, training.optimizer()
    model = SlowMoDistributedDataParallel(
        training.module,
        nprocs_per_node=1,
        slowmo_momentum=options.beta,
        slowmo_lr=options.olr,
        slowmo_memory_efficient=False,
        slowmo_frequency=options.tau,
        localsgd_frequency=options.tau,
    )
    theta = training.vector()
    model.portion_start, model.portion_end = 0, len(theta)
    model.old_params, model.global_momentum_buffer = theta.clone(), torch.zeros_like(theta)
    model.global_momentum_buffers_initialized = True
    for step in range(training.steps):
        training.backward(model, step)
        optimizer.step()
        model.perform_slowmo(optimizer)
        if (step + 1) % options.tau == 0:
            theta = training.vector()
        yield theta


# the package, the other implementation, our algorithm, its keys
CASES: dict[str, tuple[str, Counterpart, str, tuple[str, ...]]] = {
    "compressed: torch's hook": ("torch", COUNTERPARTS["power_sgd"], "compressed", (*SGD, "algo.rank=2")),
    "localsgd: torch's averager": ("torch", COUNTERPARTS["periodic_averager"], "localsgd", (*SGD, "algo.tau=5")),
    "post-local: torch's hook": ("torch", COUNTERPARTS["post_local"], "localsgd", (*SGD, *SWITCHED)),
    "diloco: torchft": ("torchft", torchft_diloco, "diloco", (*ADAMW, "algo.tau=6")),
    "streaming: torchft": ("torchft", torchft_diloco, "streaming", (*ADAMW, *IN_TURN)),
    "slowmo: fairscale": ("fairscale", fairscale_slowmo, "diloco", (*SGD, *SLOWMO)),
}


def ours(prefork: Prefork, folder: Path, algo: str, *keys: str) -> tuple[list[float], np.ndarray]:
    """Return the training loss of the output model at every mark, and the workers' parameters at the end."""
    run = prefork.start(folder / "run", *observed(algo, folder), *keys, "engine=dist", "engine.patience_s=60")
    if run.wait():
        sys.exit(run.err)
    return [mark["train_loss"] for mark in run.marks], seen(folder, "worker", 2)[:, 0]


def difference_of_losses(found: list[float], path: np.ndarray, algo: str) -> float:
    """path: of the output model, [1 + steps, d]. A mark at the end of a round may be of before or after its exchange,
    and is left out; that of the workers' mean does not depend on it."""
    expected = losses(path, KEYS)
    changed = [algo in ("diloco", "streaming") and bool((path[i] != path[i - 1]).any()) for i in range(1, len(path))]
    return max(
        abs(mine - other) for mine, other, is_end in zip(found, expected, [False, *changed], strict=False) if not is_end
    )


def check(prefork: Prefork, folder: Path, counterpart: Counterpart, algo: str, keys: tuple[str, ...]) -> list[float]:
    """Return the largest differences of losses and of parameters."""
    if carry_out(folder / "theirs", {"case": (counterpart, experiment(f"algo={algo}", *keys))}):
        sys.exit("the other implementation failed")
    theirs = left(folder / "theirs" / "case")
    found, xs = ours(prefork, folder, algo, *keys)
    loss = difference_of_losses(found, theirs[:, :, 1].mean(axis=0), algo)
    return [loss, float(np.abs(xs - theirs[:, -1, 0]).max() / np.abs(xs).max())]


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("RUST_LOG", "error")  # of torchft
    logging.disable(logging.WARNING)
    beyond, prefork = False, Prefork()
    print(f"{'case':<28}{'losses':>9}{'parameters':>12}")
    with tempfile.TemporaryDirectory(prefix="crosscheck-") as folder:
        for number, (name, (package, counterpart, algo, own)) in enumerate(CASES.items()):
            if find_spec(package) is None:
                print(f"{name:<28} needs: pip install {package}")
                continue
            loss, parameters = check(prefork, Path(folder) / str(number), counterpart, algo, (*KEYS, *own))
            beyond |= not (loss <= TOLERANCE and parameters <= TOLERANCE)
            print(f"{name:<28}{loss:>9.1e}{parameters:>12.1e}", flush=True)
    prefork.close()
    sys.exit(f"beyond the tolerance of {TOLERANCE:g}" if beyond else 0)


if __name__ == "__main__":
    main()
