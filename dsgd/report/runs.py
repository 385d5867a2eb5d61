"""Read run records from disk: finished runs, runs that are going on, and runs that were killed.

A record is a folder with `config.yaml`, `metrics.jsonl` (one JSON object per evaluation mark) and, once the run has
ended, `summary.json`.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError

MARKERS = ("metrics.jsonl", "summary.json", "env.json")  # config.yaml alone may be Hydra's or wandb's

_MARK_NAMES = {"epochs": "epoch", "bytes_sent_total": "bytes_sent"}  # summary field: field of a mark


def number(value: object) -> float:
    """The value as a float; NaN for null, text, booleans and infinities, so that a reader needs one test only."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return math.nan
    return float(value)


@dataclass(frozen=True)
class Run:
    """One run record.

    folder: where it was read, as the user named it. config: the resolved configuration, nested.
    metrics: the marks in file order. summary: None while the run goes on, or if it was killed.
    """

    folder: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any] | None

    @property
    def status(self) -> str:
        """`completed`, `failed`, `diverged`, `interrupted`; `running` if there is no summary."""
        return "running" if self.summary is None else str(self.summary.get("status"))

    def final(self, field: str) -> Any:
        """A field (by its summary name) at the end of the run, or at the last mark so far; None if unknown."""
        if self.summary is not None:
            return self.summary.get(field)
        return self.metrics[-1].get(_MARK_NAMES.get(field, field)) if self.metrics else None

    def setting(self, key: str) -> Any:
        """The value of a dotted configuration key; None if there is no such key."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def chosen(self, group: str) -> str | None:
        """The name of what was chosen in a group (`algo`, `model`, `data`): its `name`, else its class; or None."""
        name = self.setting(f"{group}.name") or (self.summary or {}).get(group)
        target = self.setting(f"{group}._target_")
        return str(name) if name else target.rpartition(".")[2] if isinstance(target, str) else None

    @property
    def algorithm(self) -> str:
        return self.chosen("algo") or "run"

    @property
    def nodes(self) -> int | None:
        nodes = self.setting("nodes")
        return nodes if isinstance(nodes, int) else None

    @property
    def clock(self) -> str | None:
        """`virtual` or `wall`; None before the first mark."""
        clock = self.final("clock")
        return None if clock is None else str(clock)

    @property
    def target(self) -> float | None:
        """The test accuracy aimed at, a fraction; None if the run had no target."""
        target = number((self.summary or {}).get("target_accuracy", self.setting("target.accuracy")))
        return None if math.isnan(target) else target

    @property
    def time_to_target_s(self) -> float | None:
        """Seconds of the run's clock until the target accuracy; None if there is no target or it was not reached."""
        if self.target is None:
            return None
        if self.summary is not None:
            seconds = number(self.summary.get("time_to_target_s"))
            return None if math.isnan(seconds) else seconds
        reached = (mark for mark in self.metrics if number(mark.get("test_accuracy")) >= self.target)
        return next((number(mark.get("time_s")) for mark in reached), None)

    @property
    def time_model(self) -> str | None:
        """What the time is that of, where it is not that of the trained network; else None. Wall time always is."""
        if self.clock == "wall":
            return None
        text = (self.summary or {}).get("time_model") or self.setting("cluster.time_model")
        return str(text) if text else None


def find_runs(paths: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """The runs named by paths; each is a run folder, or any folder with run folders below it (a Hydra multirun).

    Order: that of the paths, below one path by name with numbers in numeric order; a run named twice comes once.
    Raises ValueError, in one line, where there is no run under a path or a record cannot be read.
    """
    runs: dict[Path, Run] = {}
    for path in map(Path, paths):
        folders = _run_folders(path)
        if not folders:
            raise ValueError(f"no run under {path}: no folder with {', '.join(MARKERS[:-1])} or {MARKERS[-1]}")
        for folder in folders:
            if folder.resolve() not in runs:
                runs[folder.resolve()] = read_run(folder)
    return list(runs.values())


def read_run(folder: Path) -> Run:
    """Read one record. Raises ValueError, in one line, where a file is missing or broken."""
    return Run(folder, _read_config(folder), _read_metrics(folder), _read_summary(folder))


def _run_folders(top: Path) -> list[Path]:
    if not top.exists():
        raise ValueError(f"no run under {top}: no such folder")
    if not top.is_dir():
        raise ValueError(f"no run under {top}: it is a file, name the run's folder")
    found = []
    for folder, below, files in os.walk(top):
        if any(marker in files for marker in MARKERS):
            found.append(Path(folder))
            below.clear()  # checkpoints and mirrors inside a run are not runs
        below[:] = [name for name in below if not name.startswith(".")]
    return sorted(found, key=_natural)


def _natural(folder: Path) -> list[tuple[int, int, str]]:
    pieces = re.split(r"([0-9]+)", str(folder))
    return [(0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in pieces]


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    if not path.is_file():
        raise ValueError(f"config.yaml missing in {folder}")
    try:
        config = OmegaConf.to_container(OmegaConf.load(path))
    except (YAMLError, UnicodeDecodeError, OSError) as error:  # OmegaConf raises OSError for a scalar document
        raise ValueError(f"{path} must be a YAML mapping, got: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict) or not config:
        raise ValueError(f"{path} must be a YAML mapping with the run's configuration, got {config!r}")
    return {str(key): value for key, value in config.items()}


def _read_metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return []  # a run that ended, or was killed, before its first mark
    *lines, last = path.read_bytes().split(b"\n")
    marks = []
    for i, line in enumerate(lines, start=1):
        mark = _json_object(line)
        if mark is None:
            raise ValueError(f"{path} line {i} is not a JSON object")
        marks.append(mark)
    torn = _json_object(last)  # no newline yet: being written now, or cut off by a kill
    return marks if torn is None else [*marks, torn]


def _read_summary(folder: Path) -> dict[str, Any] | None:
    path = folder / "summary.json"
    if not path.is_file():
        return None
    summary = _json_object(path.read_bytes())
    if summary is None:
        raise ValueError(f"{path} is not a JSON object")
    return summary


def _json_object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:  # not JSON, or not UTF-8
        return None
    return value if isinstance(value, dict) else None
