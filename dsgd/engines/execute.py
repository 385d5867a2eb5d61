"""Run a plan on the engine that was chosen for it.

From Python, without Hydra and a command line:

    plan = plan_run(values, overrides=[])
    status = execute(plan, Path("outputs/mine"))
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from dsgd.host.launcher import launch
from dsgd.record.lock import FolderInUse, locked
from dsgd.record.safe_files import room_kept
from dsgd.record.safe_text import lines_for_terminal
from dsgd.runner.placement import worker_devices
from dsgd.runner.plan import Plan
from dsgd.runner.resume import check_unchanged, in_use
from dsgd.runner.values import ConfigError, ends_are_errors

if TYPE_CHECKING:
    from dsgd.engines.dist.launch.agreement import Joined

MODULES = {
    "sim": "dsgd.engines.sim.simulated",
    "dist": "dsgd.engines.dist.distributed",
    "torch": "dsgd.engines.torch.over_groups",
}
LATE = ("numpy.fft", "numpy.random", "dsgd.data.in_memory", "dsgd.models.networks")  # runs need them later


def join_launch(plan: Plan, folder: Path) -> Joined | None:
    """Meet the other processes of torchrun or srun, if one of these has started them. For real processes.

    folder: folder of the record, if this is rank 0. Raises ConfigError."""
    if (where := launch(os.environ)).kind == "local":
        return None
    from dsgd.engines.dist.launch.agreement import join  # imports torch

    return join(where, plan.config, folder)


def execute(plan: Plan, folder: Path, joined: Joined | None = None, ended: Callable[[], None] = lambda: None) -> str:
    """Run a plan with its record in `folder`. Returns the status: completed, diverged, interrupted or failed.

    joined: the meeting with a launcher's other processes. ended: called at the end of the run, before signal handlers
    are restored. Raises ConfigError for errors that only loading data and model shows, and for a folder that another
    run uses, or has used since the plan was made."""
    with ExitStack() as stack:
        if joined is None or joined.rank == 0:
            try:
                stack.enter_context(locked(folder))
                stack.enter_context(room_kept(folder))
            except FolderInUse as error:
                raise in_use(folder) from error
            except OSError as error:
                reason = f"{folder} ({error.strerror})"
                raise ConfigError(f"hydra.run.dir must be a folder that can be written, got {reason}") from error
            check_unchanged(folder, plan.contents, plan.checkpoint)
            if plan.why:
                print(lines_for_terminal(plan.why), file=sys.stderr)
        stack.enter_context(ends_are_errors())
        if plan.engine == "sim":
            from dsgd.engines.sim.simulated import run_simulated  # imports torch

            return run_simulated(plan, folder, ended)
        if plan.engine == "torch":
            from dsgd.engines.torch.over_groups import run_over_groups

            assert joined is not None  # `plan_run` has seen to it
            (names,) = worker_devices(plan.config.engine, plan.config.experiment.nodes, os.environ).values()
            return run_over_groups(plan, folder, joined, names[0], ended)
        from dsgd.engines.dist.distributed import run_distributed

        return run_distributed(plan, folder, joined, ended)


def import_engines(names: Iterable[str]) -> None:
    """Import engines, and torch with them.

    Hardly any of the new objects become garbage. Collecting garbage would take a fifth of the time."""
    gc.disable()
    try:
        for module in (*(MODULES[name] for name in names), *LATE):
            importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()
