"""Tell whether a simulation's gradients will be computed on a GPU of this machine, before the simulation begins."""

from __future__ import annotations

from dataclasses import replace

from dsgd.data import DataLost
from dsgd.experiment import Experiment
from dsgd.host.signals import Interrupted
from dsgd.host.stop import EXIT_INTERRUPTED
from dsgd.runner.children import told_by_child
from dsgd.runner.configuration import RunConfig

CPU = "cpu"


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
