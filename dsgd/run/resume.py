"""Find the run to go on with, and check that its configuration is the one asked for. Does not import torch."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsgd.host.launcher import launch
from dsgd.record.checkpoint import NAME, CheckpointError, find_checkpoint, read_header
from dsgd.record.reader import count_marks, read_config, read_status
from dsgd.record.writer import METRICS
from dsgd.run.values import ConfigError, with_numbers

# What may differ between a run and its resumption, because it does not touch the result.
FREE_TO_CHANGE = ("resume", "wandb")
AUTO = "auto"
CHECKPOINT = "in the checkpoint to resume from"


class NothingToDo(Exception):
    """The run is completed already: one line that says so."""


@dataclass(frozen=True)
class Checkpoint:
    """header: the plain values that `write_checkpoint` was given."""

    path: Path
    header: dict[str, Any]

    @property
    def engine(self) -> str:
        return self.header["engine"]


def is_automatic(wanted: str | None) -> bool:
    """Return True if the run in the record's folder is to go on, should there be one.

    wanted: the value of `resume`. A job that SLURM has started again goes on without being asked."""
    where = launch(os.environ)
    return wanted == AUTO or (wanted is None and where.step is not None and where.attempt > 0)


def unfinished(folder: Path, values: Mapping[str, Any]) -> str | None:
    """Return the folder if the run in it can go on, None if it has to begin.

    Raises NothingToDo if it is completed, and ConfigError if that was a run of another configuration."""
    if (folder / NAME).is_file():
        return str(folder)
    status = read_status(folder)
    if status not in ("completed", "diverged"):
        return None  # it was ended before its first checkpoint, if there ever was one
    _compare_all(read_config(folder), values, f"in the record in {folder}")
    raise NothingToDo(f"the run in {folder} is {status}: nothing to do")


def checkpoint_of(path: str) -> Checkpoint:
    """Return the checkpoint in a run folder, or at a path itself.

    Raises ConfigError unless it is whole, with its record beside it."""
    try:
        checkpoint = find_checkpoint(path)
    except CheckpointError as error:
        raise ConfigError(ended(path) or str(error)) from error
    try:
        header = read_header(checkpoint)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    lines, wanted = count_marks(checkpoint.parent), header["lines"]
    if lines < wanted:
        metrics = checkpoint.with_name(METRICS)
        raise ConfigError(f"resume must have {METRICS} of >= {wanted} lines beside it, got {lines} in {metrics}")
    return Checkpoint(checkpoint, header)


def ended(path: str) -> str | None:
    """Return an error text for a run without checkpoint that has ended; None if it has not."""
    status = read_status(Path(path))
    return None if status is None else f"resume must be an interrupted run, got {path}, which is {status}"


def resumed(values: dict[str, Any], overrides: Sequence[str], header: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration to go on with: that in the checkpoint's header.

    Overrides besides resume=PATH must give the same one; raises ConfigError at the first difference."""
    stored: dict[str, Any] = with_numbers(header["config"])
    if any(not text.lstrip("+").startswith(("resume=", "hydra", "wandb.")) for text in overrides):
        _compare_all(stored, values, CHECKPOINT)
    return {**stored, **{key: values[key] for key in FREE_TO_CHANGE}}


def _compare_all(stored: Mapping[str, Any], given: Mapping[str, Any], where: str) -> None:
    for key in dict.fromkeys([*stored, *given]):
        if key not in FREE_TO_CHANGE:
            compare(with_numbers(stored.get(key)), with_numbers(given.get(key)), key, where)


def compare(stored: Any, given: Any, key: str, where: str) -> None:
    """Raise ConfigError at the first difference. where: the stored value is."""
    if isinstance(stored, dict) and isinstance(given, dict):
        for inner in dict.fromkeys([*stored, *given]):
            compare(stored.get(inner), given.get(inner), f"{key}.{inner}" if key else inner, where)
    elif stored != given:
        key = key.removesuffix(".name")  # of a choice
        raise ConfigError(f"{key} must be {stored!r}, as {where}, got {given!r}")


def command(folder: Path) -> str:
    """Return the command that goes on with the run in a folder."""
    plain = re.fullmatch(r"[A-Za-z0-9_./-]+", str(folder))
    return f"dsgd-run resume={folder}" if plain else f"dsgd-run {shlex.quote(f'resume={quoted(folder)}')}"


def quoted(path: Path) -> str:
    """Quote a path for Hydra's grammar."""
    return "'" + str(path).replace("'", "\\'") + "'"
