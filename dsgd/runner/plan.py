"""Plan a run before it starts: its engine, its devices, its checkpoint, and whether model, layers and precision fit.

Only torch knows the last. It takes seconds to import, and is imported only if needed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dsgd.experiment import Experiment
from dsgd.host.devices import AUTO, CPU
from dsgd.host.launcher import advice, launch
from dsgd.models.library import ImportedModel, Torchvision
from dsgd.record.reader import number
from dsgd.record.safe_text import counted
from dsgd.record.writer import METRICS, MOST_MARKS
from dsgd.runner.configuration import RunConfig, configure, why_not
from dsgd.runner.placement import check_devices, check_process_group, device_text, devices_for, worker_devices
from dsgd.runner.resume import Checkpoint, budget_given, budgets_before, check_still_to_do, checkpoint_of, resumed
from dsgd.runner.values import ConfigError, key_prefix

# Models that have been found to fit their data, and the shapes of their parameters.
KnownModels = list[tuple[tuple[object, ...], list[tuple[int, ...]]]]

MANY_MESSAGES = 1_000_000  # of a simulation's sums: a minute


@dataclass(frozen=True)
class Plan:
    """The plan of a run. engine: sim, dist or torch. why: a line on the choice, and one on options that are probably a
    mistake; empty if already printed. checkpoint: checkpoint to resume from; None at a start. contents: contents of the
    record's folder (`dsgd.runner.resume.contents`); None: unknown. logged: print progress also without a terminal.
    extended: smaller budgets of the run before it was resumed. gradient_s: gradient time measured for all jobs of a
    sweep."""

    config: RunConfig
    engine: str
    why: str
    checkpoint: Checkpoint | None
    contents: str | None = None
    logged: bool = True
    extended: Sequence[Mapping[str, Any]] = ()
    gradient_s: float | None = None


def plan_run(values: dict[str, Any], overrides: Sequence[str]) -> Plan:
    """Plan the run of a configuration.

    values: the resolved configuration. overrides: the user's overrides, for a run that is resumed. Raises
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
        check_process_group(config)
    experiment = config.experiment
    if warning := experiment.algo.warning(experiment.nodes, experiment.optimizer.momentum):
        why += f"\nwarning: {warning}"
    cluster = experiment.cluster
    if engine == "sim" and cluster.warning:
        why += f"\nwarning: {cluster.warning}"
    if checkpoint is not None and not math.isnan(samples := number(checkpoint.header.get("samples"))):
        epoch = samples / experiment.epoch_samples
        why += f"\nresumes after step {experiment.steps_in(int(samples))}, in epoch {epoch:.1f}"
    if experiment.compile:
        why += "\ncompile: torch.compile translates the model before the first step, which may take minutes"
    if engine == "sim" and cluster.collective_messages:
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
    """Warn of sums over all workers in every step around rings, if each message is simulated."""
    nodes, total = experiment.nodes, experiment.total_samples
    messages = 2 * nodes * (nodes - 1) * (1 if total is None else experiment.steps_in(total))
    if experiment.cluster.collective != "ring" or not experiment.algo.lockstep or messages <= MANY_MESSAGES:
        return ""
    rule = f"simulates up to {messages:,} messages, as the square of nodes={nodes}"
    fewer = "each million takes a minute or so; cluster.collective=halving_doubling has fewer"
    return f"\nwarning: cluster.collective_messages=true {rule}; {fewer}"


def tightest(experiment: Experiment) -> str:
    """Return a line on the limit of the budget that ends the run before others. The time limit does not count: its end
    is known only during the run."""
    limits = experiment.sample_limits
    key = min(limits, key=lambda key: limits[key])
    first = limits[key]
    later = [f"{other}={_limit(experiment, other)}" for other, samples in limits.items() if samples > first]
    lasts = f"ends the run after {counted(experiment.steps_in(first), 'step')}, before {' and '.join(later)}"
    return f"{key}={_limit(experiment, key)} {lasts}; {key}=null lifts it"


def _limit(experiment: Experiment, key: str) -> str:
    return f"{getattr(experiment.budget, key.removeprefix('budget.')):.15g}"


def check_gradients(config: RunConfig, engine: str) -> None:
    """Raise ConfigError for options that only a simulation supports, with another engine: no gradients, checks of sums
    over all workers, evaluation of parts of the test set, lock-step that continues without lost workers. Also for
    options that engine=torch does not support."""
    if config.engine.gradients == "none":
        raise ConfigError(f"engine.gradients must not be none with engine={engine}, got none")
    for key in ("conservation", "test_folds"):
        if getattr(config.experiment.eval, key):
            raise ConfigError(f"eval.{key} must be false with engine={engine}, got true")
    if config.experiment.algo.elastic:
        raise ConfigError(f"algo.elastic must be false with engine={engine}, which ends without a worker, got true")
    if config.experiment.algo.hides_sums:
        rule = f"algo.overlap must not be backward with engine={engine}, as the simulator alone times it"
        raise ConfigError(f"{rule}, got backward")
    if engine == "torch":
        _check_over_groups(config)


def _check_over_groups(config: RunConfig) -> None:
    """Raise ConfigError for options that process groups do not support."""
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
    options = plan.config.values["wandb"]
    if "wandb" not in plan.config.trackers or options.get("group") is not None:
        return plan
    values = {**plan.config.values, "wandb": {**options, "group": group}}
    return replace(plan, config=replace(plan.config, values=values))


def choose_engine(config: RunConfig, before: str | None = None) -> tuple[str, str]:
    """Return `sim`, `dist` or `torch`, and a line that says why.

    before: the engine of the run to resume. Raises ConfigError."""
    wanted, nodes = config.engine.name, config.experiment.nodes
    gradients = "left out" if config.engine.gradients == "none" else "real"
    if wanted == "sim" and before in (None, "sim"):  # one process, independent of a launcher's variables
        reason = "as configured" if before is None else "as the resumed run"
        return wanted, f"engine: sim, {reason}; time is virtual, gradients are {gradients}"
    where = launch(os.environ)
    present = devices_for(config.engine, os.environ)
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
    elif present.count * config.engine.workers_per_gpu >= nodes:
        name, reason = "dist", f"there are {present.described} for {nodes} workers"
    else:
        few = f"{present.described} for {nodes} workers"
        name, reason = "sim", f"no torchrun or srun, and {few} (engine=dist: real processes here)"
    if name in ("dist", "torch"):
        hint = advice(os.environ)
        devices = device_text(worker_devices(config.engine, nodes, os.environ), config.engine.workers_per_gpu > 1)
        line = f"engine: {name}, {reason}; time is the wall's; workers compute on {devices}"
        return name, line + (f"\n{hint}" if hint else "")
    if where.nodes > 1:
        raise ConfigError(f"engine must be dist in the {where.nodes} processes of {where.kind}, got sim ({reason})")
    return name, f"engine: sim, {reason}; time is virtual, gradients are {gradients}"


def check_with_torch(plan: Plan, here: bool, known: KnownModels) -> None:
    """Raise ConfigError for a device, a model or options of the algorithm that do not fit the plan.

    here: the run will be on this machine. known: models already built; new ones are added."""
    experiment, options = plan.config.experiment, plan.config.engine
    asked = experiment.precision in ("tf32", "bf16") or options.device not in (AUTO, CPU) or options.gpus_per_node
    if asked and here and experiment.gradients != "none":
        check_devices(plan.config, plan.engine)
    algo = experiment.algo
    if algo.needs_layout or isinstance(experiment.model, (ImportedModel, Torchvision)):
        layout = _layout(experiment, known)
        with key_prefix("algo", fields=algo):
            algo.check_layout(layout)


def _layout(experiment: Experiment, known: KnownModels) -> list[tuple[int, ...]]:
    """Return the shapes of the model's parameters, which is built unless it is known. Raises ConfigError."""
    model = (experiment.model, experiment.data.input_shape, experiment.data.classes)
    for other, layout in known:
        if other == model:
            return layout
    import torch

    torch.set_num_threads(1)  # a pool of threads would not survive the fork of engine=dist; a run sets it again
    with key_prefix(None), torch.random.fork_rng(devices=[]):
        module = experiment.model.build(experiment.data.input_shape, experiment.data.classes)
    known.append((model, [tuple(parameter.shape) for parameter in module.parameters() if parameter.requires_grad]))
    return known[-1][1]
