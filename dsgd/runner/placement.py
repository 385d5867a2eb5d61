"""The device of each worker of a run, and errors of the choice, before the run starts.

An accelerator is queried only in a child process: once initialised in this process, its forked processes could not use
it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dsgd.data import DataLost
from dsgd.experiment import Experiment
from dsgd.host.devices import AUTO, CPU, PATIENCE_S, Accelerators, accelerators, refusal
from dsgd.host.fork import run_in_child
from dsgd.host.launcher import launch
from dsgd.host.resources import are_own
from dsgd.host.signals import Interrupted
from dsgd.host.stop import EXIT_INTERRUPTED
from dsgd.runner.configuration import EngineOptions, RunConfig
from dsgd.runner.values import ConfigError, key_prefix


def devices_for(options: EngineOptions, environment: Mapping[str, str]) -> Accelerators:
    """Return the devices that workers may use by `engine.device`. Raises ConfigError if the named device is missing."""
    if options.device == CPU:
        return Accelerators()
    present = accelerators(environment)
    if reason := refusal(options.device, present):
        raise ConfigError(reason)
    return present


def worker_devices(options: EngineOptions, nodes: int, environment: Mapping[str, str]) -> dict[int, list[str]]:
    """Return the devices of each worker that this process starts, by rank: its accelerators, or the CPU.

    If `engine.gpus_per_node` is null, a worker gets all GPUs that SLURM has assigned to this task alone, otherwise one
    if there are enough for all workers of this machine, otherwise none, or with an accelerator in `engine.device` an
    error. nodes: number of workers of the run. Raises ConfigError."""
    wanted, sharers, present = options.gpus_per_node, options.workers_per_gpu, devices_for(options, environment)
    where, gpus = launch(environment), present.count
    local, exclusive = where.kind == "local", where.kind == "slurm" and are_own(environment)
    ranks = range(nodes) if local else [where.rank]
    first, workers = (0, nodes) if local else (0, 1) if exclusive else (where.local_rank, where.local_nodes)
    each = wanted if wanted is not None else gpus if exclusive else int(gpus * sharers >= workers)
    if not each and wanted is None and options.device not in (AUTO, CPU):
        rule = f"engine.device must be auto or cpu for {workers} workers on {present.described}"
        more = f"engine.workers_per_gpu={-(-workers // gpus)} lets workers share one"
        raise ConfigError(f"{rule} ({more}), got {options.device}")
    if each * workers > gpus * sharers:
        here = "for this task alone" if exclusive else f"{workers} workers here"
        most = gpus * sharers // workers
        raise ConfigError(f"engine.gpus_per_node must be <= {most} ({gpus} GPUs, {here}), got {each}")
    return {
        rank: [f"{present.type}:{(first + position) * each // sharers + i}" for i in range(each)] or [CPU]
        for position, rank in enumerate(ranks)
    }


def device_text(devices: Mapping[int, Sequence[str]], shared: bool = False) -> str:
    """Return the devices of the workers that this process starts, in a few words. shared: others may be on the same."""
    names = list(dict.fromkeys(name for of_rank in devices.values() for name in of_rank))
    if names == [CPU]:
        return "the CPU"
    span = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    return f"{span}, which they share; sums over all go through the CPU" if shared else span


def check_process_group(config: RunConfig) -> None:
    """Raise ConfigError if real workers that average over all are on accelerators without a process group."""
    options, nodes = config.engine, config.experiment.nodes
    present = devices_for(options, os.environ)
    if present.group or not config.experiment.algo.lockstep or nodes == 1 or options.workers_per_gpu > 1:
        return
    if any(names != [CPU] for names in worker_devices(options, nodes, os.environ).values()):
        rule = f"engine.device must be cpu where torch.distributed has no process group for {present.type} devices"
        more = "with engine.workers_per_gpu=2 or more, sums go through the CPU"
        raise ConfigError(f"{rule} ({more}), got {options.device}")


def check_devices(config: RunConfig, engine: str) -> None:
    """Raise ConfigError for a device that is not here, or that lacks the precision. Raises Interrupted after a
    signal."""
    from dsgd.host.gpu_facts import chosen_device

    experiment, options = config.experiment, config.engine
    with key_prefix(None):
        if engine == "sim":
            names = {chosen_device(experiment.device).type}
        else:
            by_rank = worker_devices(options, experiment.nodes, os.environ)
            names = {name for of_rank in by_rank.values() for name in of_rank}
    if names == {CPU}:
        problem = _problem(experiment.precision, names)
    else:
        child = run_in_child(lambda: _problem(experiment.precision, names), PATIENCE_S)
        if child.signals:
            raise Interrupted
        problem = child.text
    if problem:
        raise ConfigError(problem)


def _problem(precision: str, devices: set[str]) -> str:
    """Return the reason why these devices cannot compute in this precision, or ""."""
    import torch

    from dsgd.problem.precision import prepare

    try:
        for name in sorted(devices):
            prepare(precision, torch.device(name))
    except ValueError as error:
        return str(error)
    return ""


def may_be_on_accelerator(config: RunConfig) -> bool:
    """Return whether gradients of a simulation may be on an accelerator of this machine. Whether `auto` takes it
    depends on the model's work, which is counted in a separate process. Raises KeyboardInterrupt after a signal."""
    options, experiment = config.engine, config.experiment
    if options.device == CPU or options.gradients in ("none", "compiled"):
        return False
    present = accelerators(os.environ)
    if not present.count or options.device != AUTO or options.gradients != "auto":
        return bool(present.count)
    answer = run_in_child(lambda: _device_of_auto(experiment, present.type))
    if answer.signals or answer.status == EXIT_INTERRUPTED:
        raise Interrupted
    return answer.text != CPU


def _device_of_auto(experiment: Experiment, accelerator: str) -> str:
    import torch

    from dsgd.gradients.choice import device_of_auto
    from dsgd.problem.problem import build_problem

    torch.set_num_threads(1)  # a pool of threads has not survived the fork
    device = torch.device(accelerator)
    try:
        problem = build_problem(replace(experiment, nodes=1))
    except (ValueError, DataLost):  # as the run itself will say
        return device.type
    return device_of_auto(problem, experiment.precision, device).type
