"""PowerSGD and local SGD are what torch has under these names: from the same parameters and batches, the same losses.

torch trains in processes of its own, with gloo (`tests.support.counterparts`), dsgd in real ones and in the simulator.
In double precision no loss may be further off than 1e-12, and at the end no parameter than 1e-10 of the largest.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.counterparts import losses, trained
from tests.support.prefork import Prefork
from tests.support.simulate import simulate
from tests.support.simulated import assert_close
from tests.support.watched_algorithms import observed, seen

TWO = ("precision=fp64", "nodes=2", "model.hidden=[16,16,16]", "batch_size=8", "budget.epochs=null", "budget.steps=13")
TWO += ("optimizer.momentum=0.8", "eval.every_epochs=null", "eval.every_steps=1", "eval.train_samples=200")
POWER = (*TWO, "optimizer.lr=0.5")
LOCAL = (*TWO, "optimizer.lr=0.3", "optimizer.weight_decay=0.01", "algo.tau=3")


def assert_same_losses(found: list[float], expected: list[float]) -> None:
    assert len(found) >= len(expected) == 14
    assert np.abs(np.subtract(found[:14], expected)).max() <= 1e-12


def run(prefork: Prefork, folder: Path, algo: str, *options: str) -> tuple[list[float], np.ndarray]:
    """The training loss of the output model after every step, and the workers' vectors at the end, [2, d]."""
    ended = prefork.run(folder / "run", *observed(algo, folder), *options, "engine=dist", "engine.patience_s=60")
    assert ended.summary["status"] == "completed", ended.err
    return [mark["train_loss"] for mark in ended.marks], seen(folder, "worker", 2)[:, 0]


def test_power_sgd_is_that_of_torch(prefork: Prefork, tmp_path: Path) -> None:
    """The communication hook of DistributedDataParallel, given our first Q. Rank 8 sends two of the four layers whole.

    The two differ in what cannot be seen. The hook makes Q orthogonal before each step and uses Gram and Schmidt's
    method up to rank 2: P Q^T depends only on the space that the columns of Q span. Its errors of what is sent whole
    are not 0, but add up to 0 over the workers. Both compress gradients, not steps, and apply rate and momentum to what
    was decoded, so that they also agree where these change. Weight decay is left out: in dsgd it is a part of the
    gradient, and is compressed; in torch it is added by the optimiser."""
    theirs = trained(
        tmp_path / "theirs",
        {f"rank {r}": ("power_sgd", "algo=compressed", f"algo.rank={r}", *POWER) for r in (1, 2, 3, 8)},
    )
    whole = simulate("algo=sync", *POWER).values("train_loss")
    for case, path in theirs.items():
        options = (f"algo.{case.replace(' ', '=')}", *POWER)
        simulated = simulate("algo=compressed", *options)
        assert np.abs(np.subtract(simulated.values("train_loss"), whole)).max() > 1e-3
        assert_same_losses(simulated.values("train_loss"), losses(path[0], TWO))
        assert_close(simulated.x.numpy(), path[:, -1], 1e-10)
    found, xs = run(prefork, tmp_path / "ours", "compressed", "algo.rank=2", *POWER)
    assert_same_losses(found, losses(theirs["rank 2"][0], TWO))
    assert_close(xs, theirs["rank 2"][:, -1], 1e-10)


def test_local_sgd_is_that_of_torch(prefork: Prefork, tmp_path: Path) -> None:
    """The averager of torch.distributed, and the optimiser and hook of post-local SGD with five steps before the first
    round. The losses are those of the workers' mean, which an average leaves as it is; each worker's own parameters are
    compared at the end, in the midst of a round.

    By itself torch averages after the first step of the first round, too, and then every tau: it is told to wait for
    tau steps (`warmup_steps`)."""
    cases = {"periodic_averager": LOCAL, "post_local": (*LOCAL, "algo.switch=5")}
    theirs = trained(tmp_path / "theirs", {name: (name, "algo=localsgd", *case) for name, case in cases.items()})
    for name, options in cases.items():
        found, xs = run(prefork, tmp_path / f"ours {name}", "localsgd", *options)
        assert_same_losses(found, losses(theirs[name].mean(axis=0), TWO))
        assert_close(xs, theirs[name][:, -1], 1e-10)
        assert np.abs(xs[0] - xs[1]).max() > 1e-3
