"""A trial of a model with code of its own, before real processes begin with it."""

from __future__ import annotations

import torch

from dsgd.host.signals import Interrupted
from dsgd.problem.model_failed import ModelFailed
from dsgd.problem.problem import Problem
from dsgd.runner.children import told_by_child
from dsgd.runner.values import ConfigError

STEPS = 2


def try_training(problem: Problem, threads: int) -> None:
    """Make some steps on the CPU in a process of its own, which leaves the module as it is. Raises ConfigError for a
    model that cannot be trained, and KeyboardInterrupt after a signal."""
    if not problem.state.in_place:
        return
    child = told_by_child(lambda: _failure(problem, threads))
    if child.signals:
        raise Interrupted
    if child.text:
        raise ConfigError(child.text)


def _failure(problem: Problem, threads: int) -> str:
    """Return why the model cannot be trained, in one line; "" if it can."""
    torch.set_num_threads(threads)
    x, buffers = problem.start.clone(), problem.start_buffers.clone()
    try:
        for step in range(STEPS):
            problem.gradient(x, buffers, 0, step)
    except ModelFailed as error:
        return str(error)
    except Exception as error:  # whatever the user's module may raise
        return " ".join(f"the model fails in training: {type(error).__name__}: {error}".split())
    return ""
