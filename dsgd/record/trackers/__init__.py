"""Name the trackers that a run can be copied to, and their options. Each is one module with a function `begin`.

A tracker's library is imported in a process that only copies (`dsgd.record.mirror`), never in the run's own."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dsgd.record.safe_files import read_bounded, write_atomically

TRACKERS = ("wandb", "tensorboard", "mlflow")
MODES = ("disabled", "offline", "online")
PATIENCE_S = 60.0
ID_BYTES = 100


@dataclass(frozen=True)
class TrackerOptions:
    """The configuration keys that every tracker has."""

    timeout_s: float = PATIENCE_S  # limit of waiting for the copy at the end of the run


@dataclass(frozen=True)
class WandbOptions(TrackerOptions):
    """The configuration keys `wandb.*`."""

    mode: str | None = None  # offline: files in the run folder, for `wandb sync`; null: online if `track` has wandb
    entity: str | None = None  # user or team; null: wandb's own default
    project: str = "dsgd"
    group: str | None = None  # null: a sweep's folder; of a single run, its model and data
    name: str | None = None  # null: like gossip-8-lr0.1-seed0
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TensorboardOptions(TrackerOptions):
    """The configuration keys `tensorboard.*`."""


@dataclass(frozen=True)
class MlflowOptions(TrackerOptions):
    """The configuration keys `mlflow.*`."""

    uri: str | None = None  # of the tracking server or store; null: MLflow's own default, e.g. MLFLOW_TRACKING_URI
    experiment: str = "dsgd"


class Tracker(Protocol):
    """One run in a tracker. copied: number of lines of metrics.jsonl that it has from an interrupted run."""

    copied: int

    def log(self, number: int, mark: Mapping[str, Any]) -> None:
        """Copy one line of metrics.jsonl. number: number of the line, from 0. mark: its fields without null."""
        ...

    def end(self, summary: Mapping[str, Any]) -> str:
        """Copy the summary and close the run. Returns a line for the user, or an empty text."""
        ...


def chosen(
    track: list[str], wandb: WandbOptions, tensorboard: TensorboardOptions, mlflow: MlflowOptions
) -> dict[str, float]:
    """Return the seconds that a run waits at its end for each of its trackers, by name.

    wandb.mode=online or offline adds wandb to `track`; wandb.mode=disabled takes it away. Raises ValueError."""
    for name in track:
        if name not in TRACKERS:
            raise ValueError(f"track must be a list of {', '.join(TRACKERS)}, got {name!r}")
    waits = {"wandb": wandb.timeout_s, "tensorboard": tensorboard.timeout_s, "mlflow": mlflow.timeout_s}
    for name, timeout_s in waits.items():
        if not 0 <= timeout_s < math.inf:
            raise ValueError(f"{name}.timeout_s must be finite and >= 0, got {timeout_s}")
    if wandb.mode is not None and wandb.mode not in MODES:
        raise ValueError(f"wandb.mode must be one of {', '.join(MODES)}, got {wandb.mode!r}")
    with_wandb = wandb.mode != "disabled" if wandb.mode is not None else "wandb" in track
    names = {name: name in track for name in TRACKERS} | {"wandb": with_wandb}
    return {name: waits[name] for name in TRACKERS if names[name]}


def read_id(path: Path, pattern: str = "[A-Za-z0-9_-]+") -> str:
    """Read the id that a tracker knows a run by; empty if the file is missing or has something else."""
    text = read_bounded(path, ID_BYTES).decode().strip() if path.exists() else ""
    return text if re.fullmatch(pattern, text) else ""


def write_id(path: Path, identity: str) -> None:
    """Write the id, so that a resumed run continues the same run in the tracker. Raises OSError."""
    write_atomically(path, f"{identity}\n".encode())


def new_id() -> str:
    """Return an id that no other run has."""
    return secrets.token_hex(4)


def run_name(config: Mapping[str, Any]) -> str:
    """Return the name of a run of this configuration, like `gossip-8-lr0.1-seed0`."""
    algo, rate = config["algo"]["name"], config["optimizer"]["lr"]
    return f"{algo}-{config['nodes']}-lr{rate:g}-seed{config['seed']}"


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the fields that are numbers, which is all that a chart can show."""
    return {
        key: float(value)
        for key, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
