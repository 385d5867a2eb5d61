"""Check, before anything is written, that the model fits the data, that the algorithm's options fit the model's layers,
and that the devices can compute in the precision.

Only torch can tell. It takes seconds to import and is imported only where there is something to ask.
"""

from __future__ import annotations

import os
import signal

from dsgd.experiment import Experiment
from dsgd.host.signals import Interrupted
from dsgd.models.library import ImportedModel, Torchvision
from dsgd.runner.children import told_by_child
from dsgd.runner.plan import Plan, worker_devices
from dsgd.runner.values import ConfigError, prefixed

PATIENCE_S = 60  # for CUDA to begin; whoever waits longer learns of it from the workers


# Models that have been found to fit their data, and the shapes of their parameters.
KnownModels = list[tuple[tuple[object, ...], list[tuple[int, ...]]]]


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
    from dsgd.gradients.device import chosen_device

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
