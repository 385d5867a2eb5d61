"""Decide about a run before it starts: its engine, its devices, the checkpoint it goes on from, and whether
model, layers and precision go with it.

Only torch can tell the last. It takes seconds to import and is imported only where there is something to ask.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsgd.data import DataLost
from dsgd.experiment import Experiment
from dsgd.host.fork import told_by_child
from dsgd.host.launcher import advice, launch
from dsgd.host.resources import are_own, visible_gpus
from dsgd.host.signals import Interrupted
from dsgd.host.stop import EXIT_INTERRUPTED
from dsgd.models.library import ImportedModel, Torchvision
from dsgd.record.reader import number
from dsgd.record.safe_text import counted
from dsgd.record.writer import METRICS, MOST_MARKS
from dsgd.runner.configuration import EngineOptions, RunConfig, configure, why_not
from dsgd.runner.resume import Checkpoint, budget_given, budgets_before, check_still_to_do, checkpoint_of, resumed
from dsgd.runner.values import ConfigError, prefixed

PATIENCE_S = 60  # for CUDA to begin; whoever waits longer learns of it from the workers
# Models that have been found to fit their data, and the shapes of their parameters.
KnownModels = list[tuple[tuple[object, ...], list[tuple[int, ...]]]]

MANY_MESSAGES = 1_000_000  # of a simulation's sums: a minute
CPU = "cpu"


@dataclass(frozen=True)
class Plan:
    """engine: sim, dist or torch. why: a line on the choice, and one on options that are hardly meant; empty where it
    has been printed before. checkpoint: to resume from; None at a start. contents: what the folder of the record was
    found to hold (`dsgd.runner.resume.contents`); None: nobody has looked. logged: print how far the run has come also
    where there is no terminal. extended: the smaller budgets that the run had before it went on. gradient_s: the time
    of a gradient that was measured for all jobs of a sweep."""

    config: RunConfig
    engine: str
    why: str
    checkpoint: Checkpoint | None
    contents: str | None = None
    logged: bool = True
    extended: Sequence[Mapping[str, Any]] = ()
    gradient_s: float | None = None


def plan_run(values: dict[str, Any], overrides: Sequence[str]) -> Plan:
    """Decide how a configuration is run.

    values: the resolved configuration. overrides: what the user gave of it, for a run that is resumed. Raises
    ConfigError."""
    checkpoint, extended = None, list[dict[str, Any]]()
    if values.get("resume") is not None:
        checkpoint = checkpoint_of(str(values["resume"]), extended=bool(budget_given(overrides)))
        values = resumed(values, overrides, checkpoint.header)
    config = configure(values)
    if checkpoint is not None:
        extended = budgets_before(values, checkpoint.header)
        check_still_to_do(checkpoint, values)
    engine, why = choose_engine(config, None if checkpoint is None else checkpoint.engine)
    if engine != "sim":
        check_gradients(config, engine)
    experiment = config.experiment
    if warning := experiment.algo.warning(experiment.nodes, experiment.optimizer.momentum):
        why += f"\nwarning: {warning}"
    if checkpoint is not None and not math.isnan(samples := number(checkpoint.header.get("samples"))):
        epoch = samples / experiment.epoch_samples
        why += f"\nresumes after step {experiment.steps_in(int(samples))}, in epoch {epoch:.1f}"
    if experiment.compile:
        why += "\ncompile: torch.compile translates the model before the first step, which may take minutes"
    if engine == "sim" and experiment.cluster.collective_messages:
        why += _many_messages(experiment)
    every_s, total = experiment.eval.every_time_s, experiment.total_samples or 0
    marks = total / max(experiment.mark_samples, experiment.unit)
    marks += experiment.least_time_s() / every_s if every_s else 0
    if marks > MOST_MARKS:
        room = f"{METRICS} has room for about {MOST_MARKS:,}, and a run fails beyond it"
        why += f"\nwarning: the budget allows {marks:,.0f} evaluations, {room}; eval.every_* sets fewer"
    if len(set(experiment.sample_limits.values())) > 1:
        why += f"\n{tightest(experiment)}"
    return Plan(config, engine, why, checkpoint, extended=extended)


def _many_messages(experiment: Experiment) -> str:
    """Warn of sums over all workers in every step that go around rings, where each message is simulated."""
    nodes, total = experiment.nodes, experiment.total_samples
    messages = 2 * nodes * (nodes - 1) * (1 if total is None else experiment.steps_in(total))
    if experiment.cluster.collective != "ring" or not experiment.algo.lockstep or messages <= MANY_MESSAGES:
        return ""
    rule = f"simulates up to {messages:,} messages, as the square of nodes={nodes}"
    fewer = "each million takes a minute or so; cluster.collective=halving_doubling has fewer"
    return f"\nwarning: cluster.collective_messages=true {rule}; {fewer}"


def tightest(experiment: Experiment) -> str:
    """Say which limit of the budget, of several, ends the run before the others; nothing of the limit of time, which
    only the run itself can tell."""
    limits = experiment.sample_limits
    key = min(limits, key=lambda key: limits[key])
    first = limits[key]
    later = [f"{other}={_limit(experiment, other)}" for other, samples in limits.items() if samples > first]
    lasts = f"ends the run after {counted(experiment.steps_in(first), 'step')}, before {' and '.join(later)}"
    return f"{key}={_limit(experiment, key)} {lasts}; {key}=null lifts it"


def _limit(experiment: Experiment, key: str) -> str:
    return f"{getattr(experiment.budget, key.removeprefix('budget.')):.15g}"


def check_gradients(config: RunConfig, engine: str) -> None:
    """Raise ConfigError for what only a simulation does, where this is none: leaving gradients out, checking sums over
    all workers, evaluating parts of the test set, going on without a worker in lock-step. Also for what engine=torch
    does not do."""
    if config.engine.gradients == "none":
        raise ConfigError(f"engine.gradients must not be none with engine={engine}, got none")
    for key in ("conservation", "test_folds"):
        if getattr(config.experiment.eval, key):
            raise ConfigError(f"eval.{key} must be false with engine={engine}, got true")
    if config.experiment.algo.elastic:
        raise ConfigError(f"algo.elastic must be false with engine={engine}, which ends without a worker, got true")
    if engine == "torch":
        _check_over_groups(config)


def _check_over_groups(config: RunConfig) -> None:
    """Raise ConfigError for what cannot be run over process groups."""
    experiment = config.experiment
    if reason := why_not(experiment.algo):
        raise ConfigError(f"engine must be sim or dist with algo={config.values['algo']['name']}, got torch: {reason}")
    if (where := launch(os.environ)).kind == "local":
        rule = "engine=torch must be started by torchrun or srun"
        line = f"torchrun --nproc-per-node={experiment.nodes} --no-python dsgd-run engine=torch"
        raise ConfigError(f"{rule}, one process for each worker: {line}")
    budget, evaluation = experiment.budget, experiment.eval
    for key, value in (("budget.time_s", budget.time_s), ("eval.every_time_s", evaluation.every_time_s)):
        if value is not None:
            raise ConfigError(f"{key} must be null with engine=torch, where each rank has its own clock, got {value:g}")
    if experiment.trace:
        raise ConfigError("trace must be false with engine=torch, got true")
    if (gpus := config.engine.gpus_per_node or 0) > 1:
        raise ConfigError(f"engine.gpus_per_node must be 0, 1 or null with engine=torch, got {gpus}")
    if (sharing := config.engine.workers_per_gpu) > 1:
        raise ConfigError(f"engine.workers_per_gpu must be 1 with engine=torch, got {sharing}")
    if where.kind == "slurm" and len(worker_devices(config.engine, experiment.nodes, os.environ)[where.rank]) > 1:
        raise ConfigError("engine.gpus_per_node must be 1 with engine=torch where SLURM gives a task several GPUs")


def with_wandb_group(plan: Plan, group: str) -> Plan:
    """Return the plan of a sweep's job, copied to wandb in the sweep's group unless another one is configured."""
    config = plan.config
    if "wandb" not in config.trackers or config.wandb.group is not None:
        return plan
    values = {**config.values, "wandb": {**config.values["wandb"], "group": group}}
    return replace(plan, config=replace(config, wandb=replace(config.wandb, group=group), values=values))


def choose_engine(config: RunConfig, before: str | None = None) -> tuple[str, str]:
    """Return `sim`, `dist` or `torch`, and a line that says why.

    before: the engine of the run to resume. Raises ConfigError."""
    wanted, nodes = config.engine.name, config.experiment.nodes
    gradients = "left out" if config.engine.gradients == "none" else "real"
    if wanted == "sim" and before in (None, "sim"):  # one process, whatever a launcher's variables say
        reason = "as configured" if before is None else "as the resumed run"
        return wanted, f"engine: sim, {reason}; time is virtual, gradients are {gradients}"
    where = launch(os.environ)
    gpus = visible_gpus(os.environ)
    if before is not None and wanted in ("auto", before):
        name, reason = before, "as the resumed run"
    elif before is not None:
        raise ConfigError(f"engine must be {before}, as in the checkpoint to resume from, got {wanted}")
    elif wanted != "auto":
        name, reason = wanted, "as configured"
    elif where.kind != "local":
        name, reason = "dist", f"{where.kind} has started {where.nodes} processes"
    elif where.step is not None and nodes == 1:
        name, reason = "dist", "srun has started its one worker"
    elif gpus * config.engine.workers_per_gpu >= nodes:
        name, reason = "dist", f"there are {gpus} GPUs for {nodes} workers"
    else:
        gpu = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
        name, reason = "sim", f"no torchrun or srun, and {gpu} for {nodes} workers (engine=dist: real processes here)"
    if name in ("dist", "torch"):
        hint = advice(os.environ)
        devices = described(worker_devices(config.engine, nodes, os.environ), config.engine.workers_per_gpu > 1)
        line = f"engine: {name}, {reason}; time is the wall's; workers compute on {devices}"
        return name, line + (f"\n{hint}" if hint else "")
    if where.nodes > 1:
        raise ConfigError(f"engine must be dist in the {where.nodes} processes of {where.kind}, got sim ({reason})")
    return name, f"engine: sim, {reason}; time is virtual, gradients are {gradients}"


def described(devices: Mapping[int, Sequence[str]], shared: bool = False) -> str:
    """Return the devices of the workers that this process starts, in a few words. shared: others may be on the same."""
    names = list(dict.fromkeys(name for of_rank in devices.values() for name in of_rank))
    if names == ["cpu"]:
        return "the CPU"
    span = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    return f"{span}, which they share; sums over all go through the CPU" if shared else span


def worker_devices(options: EngineOptions, nodes: int, environment: Mapping[str, str]) -> dict[int, list[str]]:
    """Return the devices of each worker that this process starts, by rank: its GPUs, or the CPU.

    Where `engine.gpus_per_node` is null, a worker has all GPUs that SLURM has given this task for itself, else one if
    there are enough for all workers of this machine, else none. nodes: workers of the run. Raises ConfigError."""
    wanted, sharers = options.gpus_per_node, options.workers_per_gpu
    where, gpus = launch(environment), visible_gpus(environment)
    local, exclusive = where.kind == "local", where.kind == "slurm" and are_own(environment)
    ranks = range(nodes) if local else [where.rank]
    first, workers = (0, nodes) if local else (0, 1) if exclusive else (where.local_rank, where.local_nodes)
    each = wanted if wanted is not None else gpus if exclusive else int(gpus * sharers >= workers)
    if each * workers > gpus * sharers:
        here = "for this task alone" if exclusive else f"{workers} workers here"
        most = gpus * sharers // workers
        raise ConfigError(f"engine.gpus_per_node must be <= {most} ({gpus} GPUs, {here}), got {each}")
    return {
        rank: [f"cuda:{(first + position) * each // sharers + i}" for i in range(each)] or ["cpu"]
        for position, rank in enumerate(ranks)
    }


def check_with_torch(plan: Plan, here: bool, known: KnownModels) -> None:
    """Raise ConfigError for a device, a model or options of the algorithm that cannot do what the plan asks for.

    here: the run will be on this machine. known: models that are not built again; one that is built is added."""
    experiment, options = plan.config.experiment, plan.config.engine
    asked = experiment.precision in ("tf32", "bf16") or experiment.device == "cuda" or options.gpus_per_node
    if asked and here and experiment.gradients != "none":
        _check_devices(plan)
    algo = experiment.algo
    if algo.needs_layout or isinstance(experiment.model, (ImportedModel, Torchvision)):
        layout = _layout(experiment, known)
        with prefixed("algo", fields=algo):
            algo.check_layout(layout)


def _layout(experiment: Experiment, known: KnownModels) -> list[tuple[int, ...]]:
    """Return the shapes of the model's parameters, which is built unless it is known. Raises ConfigError."""
    model = (experiment.model, experiment.data.input_shape, experiment.data.classes)
    for other, layout in known:
        if other == model:
            return layout
    import torch

    torch.set_num_threads(1)  # a pool of threads would not survive the fork of engine=dist; a run sets it anew
    with prefixed(None), torch.random.fork_rng(devices=[]):
        module = experiment.model.build(experiment.data.input_shape, experiment.data.classes)
    known.append((model, [tuple(parameter.shape) for parameter in module.parameters() if parameter.requires_grad]))
    return known[-1][1]


def _check_devices(plan: Plan) -> None:
    from dsgd.host.gpu_facts import chosen_device

    experiment, options = plan.config.experiment, plan.config.engine
    with prefixed(None):
        if plan.engine == "sim":
            names = {chosen_device(experiment.device).type}
        else:
            by_rank = worker_devices(options, experiment.nodes, os.environ)
            names = {name for of_rank in by_rank.values() for name in of_rank}
    if names == {"cpu"}:
        problem = _problem(experiment.precision, names)
    else:  # CUDA, once begun in this process, could not be used in those that are forked of it
        child = told_by_child(lambda: _problem_in_time(experiment.precision, names))
        if child.signals:
            raise Interrupted
        problem = child.text
    if problem:
        raise ConfigError(problem)


def _problem_in_time(precision: str, devices: set[str]) -> str:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(PATIENCE_S)
    return _problem(precision, devices)


def _problem(precision: str, devices: set[str]) -> str:
    """Return what speaks against computing in this precision on these devices, or ""."""
    import torch

    from dsgd.problem.precision import prepare

    try:
        for name in sorted(devices):
            prepare(precision, torch.device(name))
    except ValueError as error:
        return str(error)
    return ""


def may_be_on_gpu(config: RunConfig) -> bool:
    """Return whether gradients may be on a GPU, where this machine has one. Whether `auto` takes it depends on the
    model's work, which is counted in a process of its own. Raises KeyboardInterrupt after a signal."""
    options, experiment = config.engine, config.experiment
    if options.device == CPU or options.gradients in ("none", "compiled"):
        return False
    if options.device != "auto" or options.gradients != "auto":
        return True
    answer = told_by_child(lambda: _device_of_auto(experiment))
    if answer.signals or answer.status == EXIT_INTERRUPTED:
        raise Interrupted
    return answer.text != CPU


def _device_of_auto(experiment: Experiment) -> str:
    import torch

    from dsgd.gradients.choice import device_of_auto
    from dsgd.problem.problem import build_problem

    torch.set_num_threads(1)  # a pool of threads has not survived the fork
    gpu = torch.device("cuda")
    try:
        problem = build_problem(replace(experiment, nodes=1))
    except (ValueError, DataLost):  # as the run itself will say
        return gpu.type
    return device_of_auto(problem, experiment.precision, gpu).type
