"""A run over process groups of torch.distributed, in processes of torchrun or srun: `engine=torch`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dsgd.data import DataLost
from dsgd.engines.dist.launch.agreement import Joined
from dsgd.engines.dist.launch.rendezvous import serve_store
from dsgd.engines.torch.group_channel import CommunicationFailed
from dsgd.engines.torch.group_training import GroupTraining
from dsgd.host.gpu_facts import missing_device
from dsgd.host.signals import Interrupted, StopRequests
from dsgd.host.signals import remember_signals as signals_remembered
from dsgd.host.stop import STOP_SIGNALS
from dsgd.problem.slots import ModelFailed
from dsgd.record.safe_text import for_terminal
from dsgd.runner.life import live
from dsgd.runner.plan import Plan
from dsgd.runner.values import ConfigError, key_prefix


def run_over_groups(plan: Plan, folder: Path, joined: Joined, device: str, ended: Callable[[], None]) -> str:
    """Run a plan on this process's worker; rank 0 keeps the record in `folder`. Returns the status. Raises ConfigError.

    device: device of this worker. ended: called at the end of the run, before signal handlers are restored."""
    torch.set_num_threads(plan.config.engine.threads or 1)
    gc.freeze()
    try:
        with key_prefix(None), _process_group(plan, joined, torch.device(device)):
            try:
                training = GroupTraining(plan, torch.device(device))
            except (CommunicationFailed, DataLost) as failure:
                raise ConfigError(str(failure)) from failure
            with signals_remembered(STOP_SIGNALS) as stops:
                return live(plan, folder, training, stops) if joined.rank == 0 else _train(training, stops)
    finally:
        ended()


def _train(training: GroupTraining, stops: StopRequests) -> str:
    """Train in a rank that keeps no record. Returns the status.

    stops: the first asks all ranks for a checkpoint and the end."""
    try:
        with stops.armed():
            for _ in training.run(lambda: bool(stops), lambda _: None):
                pass
    except Interrupted:  # a second Ctrl-C
        return "interrupted"
    except (DataLost, ModelFailed) as failure:
        training.status, training.error = "failed", str(failure)
    if training.error:
        print(for_terminal(training.error), file=sys.stderr, flush=True)
    return training.status


@contextmanager
def _process_group(plan: Plan, joined: Joined, device: torch.device) -> Iterator[None]:
    """Connect the processes, at the address on which they have agreed."""
    if missing := missing_device(device):
        raise ValueError(missing)
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)
    limit = timedelta(seconds=plan.config.engine.timeout_s)
    if joined.listener is not None:
        store = serve_store(joined.listener)
    else:
        store = TCPStore(joined.meeting.host, joined.meeting.port, is_master=False, timeout=limit)
    store.set_timeout(limit)
    backend, nodes = dist.get_default_backend_for_device(device), plan.config.experiment.nodes
    dist.init_process_group(backend, store=store, rank=joined.rank, world_size=nodes, timeout=limit)
    try:
        yield
    finally:
        dist.destroy_process_group()
