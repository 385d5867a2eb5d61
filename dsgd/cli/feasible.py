"""What only torch can tell of a configuration, still before anything is written: whether the model fits the data, and
whether the devices here can compute in that way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dsgd.cli.build import ConfigError, prefixed
from dsgd.cli.distributed import devices_of
from dsgd.experiment import Experiment
from dsgd.gradients.stacked import chosen_device
from dsgd.host.launcher import launch
from dsgd.problem.precision import prepare

PATIENCE_S = 60  # for CUDA to begin; whoever waits longer than that learns of it from the workers


def check_model(experiment: Experiment) -> None:
    """Raise ConfigError for a model that is not there, or does not fit the data."""
    torch.set_num_threads(1)  # a pool of threads would not survive the fork of engine=dist; a run sets it anew
    with prefixed(None), torch.random.fork_rng(devices=[]):
        experiment.model.build(experiment.data.input_shape, experiment.data.classes)


def check_devices(experiment: Experiment, engine: str, options: Mapping[str, Any]) -> None:
    """Raise ConfigError for a device that is not here, or cannot compute in the precision asked for.

    engine: sim or dist. options: engine.*"""
    with prefixed(None):
        if engine == "sim":
            prepare(experiment.precision, chosen_device(experiment.device))
            return
        where = launch(os.environ)
        ranks = list(range(experiment.nodes)) if where.kind == "local" else [where.rank]
        devices = devices_of(options.get("gpus_per_node"), ranks, where)
        names = sorted({name for of_rank in devices.values() for name in of_rank})

        def each() -> None:
            for name in names:
                prepare(experiment.precision, torch.device(name))

        if names == ["cpu"]:
            each()
        else:
            in_child(each)


def in_child(check: Callable[[], None]) -> None:
    """Run a check in a forked process: CUDA, once begun in this one, could not be used in those that are forked of it.
    Raises ConfigError with the text of a ValueError raised there."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(PATIENCE_S)
            check()
        except ValueError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as told:
        text = told.read()
    os.waitpid(child, 0)
    if text:
        raise ConfigError(text)
