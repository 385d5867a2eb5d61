"""What every process of a run is given when it is forked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsgd.experiment import Experiment
from dsgd.problem.problem import Problem

BEAT_S = 0.5  # between two signs of life
HELLO_S = 25.0  # until everybody must have come; less than a user waits before asking


@dataclass(frozen=True)
class Limits:
    """timeout_s: how long anything that must come is waited for. patience_s: how long a peer may be silent in a pull or
    a push before the others go on without it."""

    timeout_s: float
    patience_s: float


@dataclass(frozen=True)
class Job:
    """coordinator: its address. state: what a checkpoint holds, to go on from; None at a start."""

    experiment: Experiment
    problem: Problem
    coordinator: tuple[str, int]
    token: bytes
    limits: Limits
    threads: int
    devices: Mapping[int, Sequence[str]]  # of the workers of this machine, by rank
    state: Mapping[str, Any] | None = None
