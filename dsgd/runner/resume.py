"""Find the run to resume, and check that its configuration is the one asked for. Does not import torch."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsgd.host.launcher import legible
from dsgd.record.checkpoint_file import NAME, CheckpointError, check_header, find_checkpoint, has_header, read_header
from dsgd.record.reader import lines_sha256, number, read_config, read_status, read_summary
from dsgd.record.writer import METRICS
from dsgd.runner.configuration import TRUSTED, check_code, code_of
from dsgd.runner.values import CHOSEN, ConfigError, value_at, with_numbers

# Keys that may differ between a run and its resumption, because they do not affect the result.
FREE_TO_CHANGE = ("resume", "track", "wandb", "tensorboard", "mlflow")
WITHOUT_EFFECT = (
    "resume=",
    f"{TRUSTED}=",
    "hydra",
    "track=",
    "wandb.",
    "tensorboard.",
    "mlflow.",
    "sweep.",
    "budget.",
)  # beginnings of overrides that need not be the same
DEVICE = "engine.device"  # may differ from a checkpoint named by its path, whose vectors are on the CPU
AUTO = "auto"
FOLLOWS_NO_BUDGET = ("constant", "step")  # schedules whose rates do not depend on when training ends
ENDED = ("completed", "diverged")  # statuses of a run that has ended by itself
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
    """Return True if a run in the record's folder should be resumed.

    wanted: the value of `resume`. A job that SLURM has started again resumes by default."""
    where = legible(os.environ)
    restarted = where is not None and where.step is not None and where.attempt > 0
    return wanted == AUTO or (wanted is None and restarted)


def contents(folder: Path) -> str:
    """Return the contents of a run folder: nothing; ended: a run that has ended by itself; checkpoint: one to resume
    from; remains: a run that was killed before its first checkpoint.

    A summary of an ended run counts more than a checkpoint, which is removed after it is written. Raises ConfigError
    for an invalid summary."""
    if not os.path.exists(folder):  # false also for a name that cannot be one
        return "nothing"
    has_checkpoint = (folder / NAME).is_file()
    try:
        summary = read_summary(folder)
    except ValueError as error:
        if not has_checkpoint:
            raise ConfigError(str(error)) from error
        summary = None  # the checkpoint is complete, or its own check fails
    if summary is not None and summary.get("status") in ENDED:
        return "ended"
    if has_checkpoint:
        return "checkpoint"
    return "nothing" if summary is None and not (folder / METRICS).exists() else "remains"


def unfinished(folder: Path, values: Mapping[str, Any]) -> str | None:
    """Return the folder if the run in it can be resumed, None if it must start.

    Raises NothingToDo if it is completed, and ConfigError if it was a run of another configuration."""
    state = contents(folder)
    if state != "ended":
        return str(folder) if state == "checkpoint" else None
    _compare_all(read_config(folder), values, f"in the record in {folder}")
    raise NothingToDo(f"the run in {folder} is {read_status(folder)}: nothing to do")


def checkpoint_of(path: str, extended: bool = False) -> Checkpoint:
    """Return the checkpoint in a run folder, or at a path itself.

    extended: True for another budget, so the run may be completed. Raises ConfigError unless the checkpoint is
    complete, with its record in the same folder, and its run can be resumed."""
    try:
        checkpoint = find_checkpoint(path)
    except CheckpointError as error:
        raise ConfigError(_not_to_go_on(path, Path(path), extended) or str(error)) from error
    if contents(checkpoint.parent) == "ended" and not (extended and read_status(checkpoint.parent) == "completed"):
        raise ConfigError(_not_to_go_on(path, checkpoint.parent, extended) or path)
    try:
        header = read_header(checkpoint)
        check_header(header, checkpoint)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    if lines_sha256(checkpoint.parent, header["lines"]) != header["lines_sha256"]:
        rule = f"resume must have the first {header['lines']} lines of {METRICS} as the run wrote them"
        raise ConfigError(f"{rule}, got others or fewer in {checkpoint.with_name(METRICS)}")
    return Checkpoint(checkpoint, header)


def check_still_to_do(checkpoint: Checkpoint, values: Mapping[str, Any]) -> None:
    """Raise ConfigError for a completed run whose budget does not grow."""
    if contents(checkpoint.path.parent) == "ended" and values["budget"] == checkpoint.header["config"]["budget"]:
        folder = checkpoint.path.parent
        raise ConfigError(f"budget must be larger than that of the run in {folder}, which is completed, got the same")


def _not_to_go_on(path: str, folder: Path, extended: bool) -> str | None:
    """Return an error text for a run that has ended; None if it has not."""
    status = read_status(folder) if os.path.isdir(folder) else None
    if status is None:
        return None
    text = f"resume must be an interrupted run, got {path}, which is {status}"
    if status == "completed" and (folder / NAME).is_file():
        return f"{text}; {command(folder)} with a larger budget resumes from its checkpoint"
    hint = "; with engine.keep_checkpoint=true a run keeps its checkpoint for a larger budget"
    return text + hint if extended and status == "completed" else text


def check_unchanged(folder: Path, before: str | None, checkpoint: Checkpoint | None) -> None:
    """Check that a run folder, and the checkpoint to resume from, have not changed since the run was planned.

    Call it once no other process can write in the folder. Raises ConfigError.

    before: result of `contents` then; None: unknown."""
    if before is not None and contents(folder) != before:
        raise in_use(folder)
    if checkpoint is not None:
        try:
            same = has_header(checkpoint.path, checkpoint.header)
        except OSError:  # the run has ended meanwhile
            same = False
        if not same:
            raise in_use(checkpoint.path.parent)


def in_use(folder: Path) -> ConfigError:
    """Return the error for a folder in which another run writes, or has just written."""
    return ConfigError(f"hydra.run.dir must not be in use by another run, got {folder}")


def resumed(values: dict[str, Any], overrides: Sequence[str], header: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration to resume with: the checkpoint's, with a larger budget if one is given.

    With resume=PATH, each other override except the device must equal the checkpoint's value; raises ConfigError at the
    first that differs. With resume=auto the whole configuration must be the same, because it identifies the run. Also
    raises ConfigError for code that only the checkpoint names."""
    stored: dict[str, Any] = with_numbers(header["config"])
    check_code(stored, values, CHECKPOINT)
    if larger := budget_given(overrides):
        stored = {**stored, "budget": _extended(stored, values["budget"], larger)}
        values = {**values, "budget": stored["budget"]}
    typed_keys = [text for text in map(_without_sign, overrides) if not text.startswith(WITHOUT_EFFECT)]
    if _names_a_run(overrides):
        for text in typed_keys:
            if text.startswith(f"{DEVICE}=") and isinstance(stored.get("engine"), dict):
                stored = {**stored, "engine": {**stored["engine"], "device": values["engine"]["device"]}}
            else:
                _compare_typed(text, stored, values)
    elif typed_keys:
        _compare_all(stored, values, CHECKPOINT)
    return {**stored, **{key: values[key] for key in FREE_TO_CHANGE}}


def budget_given(overrides: Sequence[str]) -> list[str]:
    """Return the keys of the budget on a command line with resume=PATH; none with resume=auto, which resumes exactly
    the run of a configuration."""
    if not _names_a_run(overrides):
        return []
    texts = [text for text in map(_without_sign, overrides) if text.startswith("budget.")]
    return [text.partition("=")[0].removeprefix("budget.") for text in texts]


def _names_a_run(overrides: Sequence[str]) -> bool:
    return any(text.startswith("resume=") and text != f"resume={AUTO}" for text in map(_without_sign, overrides))


def _without_sign(override: str) -> str:
    return override.lstrip("+~")


def _extended(stored: Mapping[str, Any], given: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return the budget of a resumed run. given: budget of the command line. keys: its typed keys. Raises ConfigError
    unless the budget only grows, and the steps so far are the same with the larger budget."""
    before, schedule = stored.get("budget"), stored.get("schedule")
    if not isinstance(before, dict) or not isinstance(schedule, dict):
        raise ConfigError(f"budget and schedule must be {CHECKPOINT}, to be compared with, got nothing")
    wanted = {**before, **{key: given[key] for key in keys}}
    for key in keys:
        new, old = wanted[key], before.get(key)
        if new is not None and old is None:
            raise ConfigError(f"budget.{key} must be null, as {CHECKPOINT}, got {new!r}")
        if number(new) < number(old):  # False unless both are numbers, which is checked elsewhere
            raise ConfigError(f"budget.{key} must be >= {old}, as {CHECKPOINT}, got {new!r}")
    kind = schedule.get("kind")
    if wanted != before and kind not in FOLLOWS_NO_BUDGET:
        rule = f"budget must stay as {CHECKPOINT} with schedule={kind}, whose rates so far depend on it"
        raise ConfigError(f"{rule}, got {', '.join(f'{key}={wanted[key]}' for key in keys)}")
    return wanted


def budgets_before(values: Mapping[str, Any], header: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the budgets that a run had before it was extended. values: configuration of the resumed run."""
    earlier, last = header.get("extended"), header["config"].get("budget")
    earlier = earlier if isinstance(earlier, list) else []
    return earlier if last == values["budget"] else [*earlier, last]


def _compare_typed(text: str, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise ConfigError if an override, without its sign, differs from the stored value. For a group only the choice is
    compared; for an experiment, all keys that it sets."""
    key = text.partition("=")[0]
    if key == "experiment":
        try:
            _compare_all(stored, given, CHECKPOINT)
        except ConfigError as error:
            raise ConfigError(f"{error} of {text}") from error
        return
    key = f"{key}.name" if key in CHOSEN else key
    compare(value_at(with_numbers(stored), key), value_at(with_numbers(given), key), key, CHECKPOINT)


def has_configuration(folder: Path, values: Mapping[str, Any]) -> bool:
    """Return whether the record in a folder is of this configuration."""
    try:
        _compare_all(read_config(folder), values, "")
    except ValueError:
        return False
    return True


def _compare_all(stored: Mapping[str, Any], given: Mapping[str, Any], where: str) -> None:
    for key in dict.fromkeys([*stored, *given]):
        if key not in (*FREE_TO_CHANGE, TRUSTED):
            compare(with_numbers(stored.get(key)), with_numbers(given.get(key)), key, where)


def compare(stored: Any, given: Any, key: str, where: str) -> None:
    """Raise ConfigError at the first difference. where: place of the stored value."""
    if key == DEVICE and stored is None:  # of real processes, before they had the key
        stored = AUTO
    if isinstance(stored, dict) and isinstance(given, dict):
        for inner in dict.fromkeys([*stored, *given]):
            compare(stored.get(inner), given.get(inner), f"{key}.{inner}" if key else inner, where)
    elif stored != given:
        key = key.removesuffix(".name")  # of a choice
        raise ConfigError(f"{key} must be {stored!r}, as {where}, got {given!r}")


def command(folder: Path, ours: bool = False) -> str:
    """Return the command that resumes the run in a folder. ours: True if this process has made the run, with the code
    that its configuration names."""
    trusted = [f"{TRUSTED}=true"] if ours and code_of(read_config(folder)) else []
    return shlex.join(["dsgd-run", f"resume={typed(folder)}", *trusted])


def sweep_command(arguments: Sequence[str]) -> str:
    """Return the command that makes the missing runs of a sweep. arguments: its command line, with its folder."""
    kept = [text for text in arguments if not text.startswith("resume=")]
    return shlex.join(["dsgd-run", *kept, "resume=auto"])


def typed(path: Path) -> str:
    """Return a path in Hydra's grammar: with quotes if needed."""
    return str(path) if re.fullmatch(r"[A-Za-z0-9_./-]+", str(path)) else quoted(path)


def quoted(path: Path) -> str:
    """Quote a path for Hydra's grammar."""
    return "'" + str(path).replace("'", "\\'") + "'"
