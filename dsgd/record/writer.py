"""Write the record of a run: append-only during the run, readable at any time."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from dsgd.record.safe_files import open_kept, read_lines, replace_together, write_all, write_in_room

CONFIG, ENV, METRICS, SUMMARY, TRACE = "config.yaml", "env.json", "metrics.jsonl", "summary.json", "trace.json"
CONFIG_SHA256 = "config_sha256"  # in a summary: hash of config.yaml
METRICS_BYTES = 2**29  # a thousand times the size with 1,024 workers
MOST_MARKS = 700_000  # number of marks that fit into it, with 760 bytes each
OF_RUNS = ("dsgd", "conf", "pyproject.toml", "constraints.txt")  # files and folders of a checkout that a run depends on


class WithoutAliases(yaml.SafeDumper):
    """Writes an object at each occurrence: `yaml_document` reads no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class Record:
    """The folder of one run. Host time since the run began goes into every line as `wall_s`, and nowhere else."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        devices: Sequence[str],
        before: Path | None = None,
        lines: int = 0,
        wall_s: float = 0.0,
        chosen: Mapping[str, Any] | None = None,
        others: Mapping[str, bytes | None] | None = None,
    ) -> None:
        """Begin a record, or resume one.

        folder: folder of the record, created if it is missing. config: resolved configuration. devices: names of the
        computing devices, like `cpu` or `cuda:0`. before: folder of the interrupted run to resume, may be `folder`.
        lines: number of lines of its metrics.jsonl to keep. wall_s: its host time so far, in seconds. chosen: automatic
        choices of the run, for env.json. others: {name: content} of other files in the folder, written, or removed for
        None, before the record's files.

        A kill at any write never leaves a configuration with marks or a summary of another one. Raises OSError; on a
        full disk, the record stays unchanged."""
        self.folder = folder
        self._started = time.monotonic() - wall_s
        kept = b"".join(islice(read_lines(before / METRICS, METRICS_BYTES), lines)) if before else b""
        folder.mkdir(parents=True, exist_ok=True)
        content = yaml.dump(dict(config), Dumper=WithoutAliases, sort_keys=False).encode()
        self._config_sha256 = hashlib.sha256(content).hexdigest()
        described = {**environment(devices), **(chosen or {})}
        is_here = before is not None and before.samefile(folder)
        others = others or {}
        first = {folder / name: text for name, text in others.items() if text is not None}
        marks = {folder / METRICS: kept}
        files = {folder / CONFIG: content, folder / ENV: json.dumps(described, indent=2).encode() + b"\n"}
        foreign = [] if is_here else [METRICS, ENV]  # there may be another run's
        # an earlier end before all else
        gone = [SUMMARY, TRACE, *(name for name, text in others.items() if text is None), *foreign]
        replace_together(first | (marks | files if is_here else files | marks), [folder / name for name in gone])
        self._metrics = FileIO(open_kept(folder / METRICS, os.O_WRONLY | os.O_APPEND), "ab")
        self._whole_bytes = len(kept)  # of metrics.jsonl, without a torn line
        self._lines, self._digest = lines, hashlib.sha256(kept)

    @property
    def wall_s(self) -> float:
        """Return the run's seconds of host time, including the time before a resume."""
        return time.monotonic() - self._started

    def mark(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Append one line to metrics.jsonl and return it. Raises OSError, without any part of the line in the file,
        also if the reader would refuse the file."""
        line = {"wall_s": round(self.wall_s, 3), **values}
        content = json.dumps(finite(line)).encode() + b"\n"
        if self._whole_bytes + len(content) > METRICS_BYTES:
            raise OSError(errno.EFBIG, f"no more than {METRICS_BYTES} bytes of {METRICS} can be read")
        try:
            write_all(self._metrics, content)
        except OSError:
            self._metrics.truncate(self._whole_bytes)
            raise
        self._whole_bytes += len(content)
        self._lines += 1
        self._digest.update(content)
        return line

    def counted(self) -> dict[str, Any]:
        """Flush metrics.jsonl to the disk, and return a checkpoint's fields about its lines."""
        os.fsync(self._metrics.fileno())
        return {"lines": self._lines, "lines_sha256": self._digest.hexdigest()}

    def finish(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        """Write the summary, atomically, and close the record; returns the summary as written."""
        self._metrics.close()
        whole = {**summary, "wall_s": round(self.wall_s, 3), CONFIG_SHA256: self._config_sha256}
        write_in_room(self.folder / SUMMARY, json.dumps(finite(whole), indent=2).encode() + b"\n")
        return whole


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NaN and infinities, which JSON does not have, by None (a diverged run's status explains them)."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def environment(devices: Sequence[str]) -> dict[str, Any]:
    """Describe the environment of the run: commit, versions, host, devices."""
    return {
        "dsgd": version("dsgd"),
        "commit": commit(),
        "command": sys.argv,
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "devices": list(devices),
        "cpus": os.cpu_count(),
    }


def code_version() -> str:
    """Name the code that runs: its commit, or the version of an installed package, and the version of torch."""
    return f"dsgd {commit() or version('dsgd')}, torch {version('torch')}"


def commit(checkout: Path | None = None) -> str | None:
    """Return the commit of the checkout that dsgd runs from, with '+' if the package or its configurations changed
    since; None for an installed package."""
    source = Path(__file__).resolve().parents[2] if checkout is None else checkout
    if not (source / ".git").exists():
        return None
    try:
        head, changed = (
            subprocess.run(["git", "-C", str(source), *arguments], capture_output=True, check=True, timeout=60)
            for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "--", *OF_RUNS])
        )
        return head.stdout.decode().strip() + "+" * bool(changed.stdout)
    except (OSError, subprocess.SubprocessError):
        return None  # no git on this machine, or not our repository
