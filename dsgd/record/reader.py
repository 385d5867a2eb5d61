"""Read the records of ended, running and killed runs.

`find_runs` reads whole records. The functions that take a folder read one file of its record, and only the part that
they return: `dsgd-sweep status` reads hundreds of records. Broken files raise ValueError, in one line.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from dsgd.record.safe_files import Unbounded, json_object, read_bounded, read_end, read_lines, yaml_document
from dsgd.record.safe_text import calm, counted, for_terminal
from dsgd.record.writer import CONFIG, CONFIG_SHA256, ENV, METRICS, METRICS_BYTES, SUMMARY

MARKERS = (METRICS, SUMMARY, ENV)  # config.yaml alone may be Hydra's or wandb's

# maximum bytes of a file of a record, or of a line of metrics.jsonl: a thousand times the size with 1,024 workers
CONFIG_BYTES, SUMMARY_BYTES, MARK_BYTES = 2**20, 2**24, 2**20

# names of marks and summaries, of all engines and keys (docs/reference/record.md)
_NAMES = """
algo bytes_between_islands bytes_received bytes_received_max_node bytes_received_max_server bytes_received_total
bytes_sent bytes_sent_max_node bytes_sent_max_server bytes_sent_total clock collapsed collective config_sha256
consensus_distance cuda cudnn data device dimension discrepancy ended_by engine epoch epochs error extended failures
first_crossing_s goodput gpu gpu_driver gpu_peak_bytes gradient_s gradients idle_fraction_max idle_fraction_mean
lost_updates lost_work_s lr marks_left_out mean_drift message_bytes messages_lost messages_resent model nccl nodes
pairwise_distance_median samples seed spectral_gap stable_crossing_s staleness_max staleness_mean status steps
target_accuracy target_censored_at_s target_loss target_resolution_s test_accuracy test_fold_accuracies
test_fold_losses test_loss test_loss_deviation test_top5 threads time_model time_s time_to_target_s topology
train_loss wall_s worker_accuracy_max worker_accuracy_mean worker_accuracy_min worker_steps workers_lost
"""
FIELDS = frozenset(_NAMES.split())

# summary field: field of a mark
_MARK_NAMES = {"epochs": "epoch", "bytes_sent_total": "bytes_sent", "bytes_received_total": "bytes_received"}


def number(value: object) -> float:
    """Return the value as a float; NaN for null, text, booleans, infinities and integers beyond all floats. So a single
    test for NaN is enough."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        return math.nan
    return float(value)


def name_of(group: object) -> object:
    """Return the name of the choice in a configuration group, or None.

    `model=import` and `data=import` have the name of their `label`, or else of their function or class with its
    arguments."""
    if not isinstance(group, dict):
        return None
    name, target = group.get("name"), group.get("target")
    if name != "import" or not isinstance(target, str):
        return name
    arguments = group.get("arguments")
    given = ", ".join(f"{key}={value}" for key, value in arguments.items()) if isinstance(arguments, dict) else ""
    return group.get("label") or target.rpartition(".")[2] + (f"({given})" if given else "")


@dataclass(frozen=True, repr=False)
class Run:
    """One run record.

    folder: folder of the record, as the caller named it. config: the resolved configuration, nested. metrics: the
    evaluations (marks) in file order. summary: None while the run trains, or after a kill."""

    folder: Path
    config: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any] | None

    def __repr__(self) -> str:
        """Describe the run in one line: its algorithm, its outcome, and its latest values."""
        parts = [self.algorithm, counted(self.nodes or 0, "node"), self.outcome]
        for field, unit in (("test_accuracy", ""), ("test_loss", ""), ("time_s", " s")):
            value = number(self.final(field))
            parts += [] if math.isnan(value) else [f"{field} {value:.4g}{unit}"]
        return for_terminal(f"<dsgd run {str(self.folder)!r}: {', '.join(parts)}>")

    @property
    def status(self) -> str:
        """Return `completed`, `failed`, `diverged` or `interrupted`; `running` without a summary."""
        return "running" if self.summary is None else str(self.summary.get("status"))

    @property
    def outcome(self) -> str:
        """Return the status, but `collapsed` for a run that used up its budget and ended worse than it began."""
        collapsed = self.summary is not None and self.summary.get("collapsed") is True
        return "collapsed" if collapsed and self.status == "completed" else self.status

    def final(self, field: str) -> Any:
        """Return a field, by its name in the summary, at the end of the run or the last evaluation, or None.

        Raises ValueError for a name that no run has."""
        last = self.metrics[-1] if self.metrics else {}
        if field not in FIELDS and field not in (self.summary or ()) and field not in last:
            names = ", ".join(self.summary or last or sorted(FIELDS))
            raise ValueError(f"field must be one of {names}, got {field}")
        return last.get(_MARK_NAMES.get(field, field)) if self.summary is None else self.summary.get(field)

    def setting(self, key: str) -> Any:
        """Return the value of a dotted configuration key, or None."""
        value: Any = self.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def chosen(self, group: str) -> str | None:
        """Return the choice in a group (`algo`, `model`, `data`): its `name`, else its class; or None."""
        name = name_of(self.setting(group)) or (self.summary or {}).get(group)
        target = self.setting(f"{group}._target_")
        return str(name) if name else target.rpartition(".")[2] if isinstance(target, str) else None

    @property
    def algorithm(self) -> str:
        """Return the name of the algorithm, or `run` without one."""
        return self.chosen("algo") or "run"

    @property
    def nodes(self) -> int | None:
        """Return the number of nodes."""
        nodes = self.setting("nodes")
        return nodes if isinstance(nodes, int) else None

    @property
    def clock(self) -> str | None:
        """Return `virtual` or `wall`; None before the first mark."""
        clock = self.final("clock")
        return None if clock is None else str(clock)

    @property
    def target(self) -> float | None:
        """Return the target: a value of `target_field`; None if the run had no target."""
        return next((level for level in self._targets.values() if not math.isnan(level)), None)

    @property
    def target_field(self) -> str | None:
        """Return the field of the target, test_accuracy or test_loss; None without a target."""
        return next((field for field, level in self._targets.items() if not math.isnan(level)), None)

    @property
    def _targets(self) -> dict[str, float]:
        summary = self.summary or {}
        kinds = ("accuracy", "loss")
        return {f"test_{kind}": number(summary.get(f"target_{kind}", self.setting(f"target.{kind}"))) for kind in kinds}

    @property
    def time_model(self) -> str | None:
        """Name the network whose times were simulated, if it is not the trained network; otherwise None."""
        if self.clock == "wall":
            return None
        text = (self.summary or {}).get("time_model") or self.setting("cluster.time_model")
        return str(text) if text else None


def find_runs(paths: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """Read all runs at or below some paths: run folders, or folders with run folders below them (a Hydra multirun).

    The order follows the paths; below a path it follows the names, with numbers in numeric order. A run appears once
    only. Its names are texts of one line each. Raises ValueError, in one line, if there is no run under a path or a
    record cannot be read."""
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        for folder in _run_folders(path):
            folders.setdefault(folder.resolve(), folder)
    return [
        Run(folder, calm(read_config(folder)), read_marks(folder), calm(read_summary(folder)))
        for folder in folders.values()
    ]


def read_config(folder: Path) -> dict[str, Any]:
    """Read the resolved configuration of a run."""
    path = folder / CONFIG
    if not path.is_file():
        raise ValueError(f"{CONFIG} missing in {folder}")
    try:
        config = yaml_document(_content(path, CONFIG_BYTES))
    except (yaml.YAMLError, Unbounded) as error:
        raise ValueError(f"{path} must be a YAML mapping, got: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict) or not config:
        got = f"{type(config).__name__} of {len(config)} values" if isinstance(config, list) else repr(config)[:100]
        raise ValueError(f"{path} must be a YAML mapping with the run's configuration, got {got}")
    return {str(key): value for key, value in config.items()}


def read_marks(folder: Path) -> list[dict[str, Any]]:
    """Read all marks of a run, in file order; a last line without newline counts if it is whole."""
    marks = []
    for i, line in enumerate(_metrics(folder), start=1):
        mark = json_object(line)
        if mark is not None:
            marks.append({sys.intern(key): value for key, value in mark.items()})  # each name once, not in every mark
        elif line.endswith(b"\n"):  # else being written now, or cut off by a kill
            raise ValueError(f"{folder / METRICS} line {i} is not a JSON object")
    return marks


def read_env(folder: Path) -> dict[str, Any]:
    """Read the software and hardware of a run; empty without the file. Raises ValueError if it is no JSON object."""
    return _json_file(folder / ENV) or {}


def read_last_mark(folder: Path) -> dict[str, Any] | None:
    """Read the last mark with a complete line, without parsing earlier ones; None before the first."""
    path = folder / METRICS
    with _readable(path):
        whole, _, _ = (read_end(path, MARK_BYTES) if path.is_file() else b"").rpartition(b"\n")
    return json_object(whole.rpartition(b"\n")[2])


def lines_sha256(folder: Path, lines: int) -> str:
    """Return the digest of the first lines of metrics.jsonl, as `Record.counted` has it."""
    digest = hashlib.sha256()
    for line in islice(_metrics(folder), lines):
        digest.update(line)
    return digest.hexdigest()


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Read the summary of a run; None while it trains, or after a kill.

    A summary that names another configuration than `config.yaml` belongs to an earlier run; the result is then None."""
    summary = _json_file(folder / SUMMARY)
    named = None if summary is None else summary.get(CONFIG_SHA256)  # not in records of earlier versions
    return summary if named is None or named == _config_sha256(folder) else None


def read_status(folder: Path) -> str | None:
    """Read the status of an ended run (`completed`, `diverged`, ...) from its summary; None without a summary."""
    summary = read_summary(folder)
    return None if summary is None else str(summary.get("status"))


def _run_folders(top: Path) -> list[Path]:
    """List the run folders at or below a folder. Raises ValueError if it has none."""
    if not top.exists():
        raise ValueError(f"no run under {top}: no such folder")
    if not top.is_dir():
        raise ValueError(f"no run under {top}: it is a file, name the run's folder")
    folders = []
    for folder, below, files in os.walk(top):
        if any(marker in files for marker in MARKERS):
            folders.append(Path(folder))
            below.clear()  # checkpoints and mirrors inside a run are not runs
        below[:] = [name for name in below if not name.startswith(".")]
    if not folders:
        raise ValueError(f"no run under {top}: no folder with {', '.join(MARKERS[:-1])} or {MARKERS[-1]}")
    return sorted(folders, key=_natural)


def _natural(folder: Path) -> list[tuple[int, int, str]]:
    """Return a sorting key that puts 2 before 10."""
    pieces = re.split(r"([0-9]+)", str(folder))
    return [(0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in pieces]


def _config_sha256(folder: Path) -> str | None:
    path = folder / CONFIG
    return hashlib.sha256(_content(path, CONFIG_BYTES)).hexdigest() if path.is_file() else None


def _json_file(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None without the file."""
    if not path.is_file():
        return None
    content = json_object(_content(path, SUMMARY_BYTES))
    if content is None:
        raise ValueError(f"{path} is not a JSON object")
    return content


def _metrics(folder: Path) -> Iterator[bytes]:
    """Yield the lines of metrics.jsonl; none if a run ended, or was killed, before its first mark."""
    path = folder / METRICS
    with _readable(path):
        yield from read_lines(path, METRICS_BYTES) if path.is_file() else ()


def _content(path: Path, most: int) -> bytes:
    with _readable(path):
        return read_bounded(path, most)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise ValueError for a file of a record that is not a regular one, or larger than it may be."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{path} must be readable, got: {error.strerror}") from error
