"""Check, before anything is written, that the model fits the data and that the devices can compute in the precision.

Only torch can tell. It takes seconds to import and is imported only where there is something to ask.
"""

from __future__ import annotations

import os
import signal

from dsgd.models.library import ImportedModel, Torchvision
from dsgd.run.children import told_by_child
from dsgd.run.plan import Plan, worker_devices
from dsgd.run.values import ConfigError, prefixed

PATIENCE_S = 60  # for CUDA to begin; whoever waits longer learns of it from the workers


def check_with_torch(plan: Plan, here: bool, models: list[tuple[object, ...]]) -> None:
    """Raise ConfigError for a device or a model that cannot do what the plan asks for.

    here: the run will be on this machine. models: those that have been found to fit their data, which are not tried
    again."""
    experiment, options = plan.config.experiment, plan.config.engine
    asked = experiment.precision in ("tf32", "bf16") or experiment.device == "cuda" or options.gpus_per_node
    if asked and here and experiment.gradients != "none":
        _check_devices(plan)
    model = (experiment.model, experiment.data.input_shape, experiment.data.classes)
    if isinstance(experiment.model, (ImportedModel, Torchvision)) and model not in models:
        import torch

        torch.set_num_threads(1)  # a pool of threads would not survive the fork of engine=dist; a run sets it anew
        with prefixed(None), torch.random.fork_rng(devices=[]):
            experiment.model.build(experiment.data.input_shape, experiment.data.classes)
        models.append(model)


def _check_devices(plan: Plan) -> None:
    from dsgd.gradients.stacked import chosen_device

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
        told = told_by_child(lambda: _problem_in_time(experiment.precision, names))
        if told.signals:
            raise KeyboardInterrupt
        problem = told.text
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
