"""Keep the list of a sweep's points and submissions: `manifest.jsonl`, lines of JSON that are only ever appended.

A process appends while it holds the lock of the folder, so a second submitter sees the first one's lines. A line torn
by a crash does not count; the next appending process removes it.
"""

from __future__ import annotations

import difflib
import fcntl
import fnmatch
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from dsgd.record.safe_files import open_kept, read_bounded

MANIFEST, LOCK, RUNS = "manifest.jsonl", "manifest.lock", "runs"
LOCK_WAIT_S = 60.0
LARGEST = 2**28  # bytes of a manifest: of a million points
FOLDER, JOB = re.compile(rf"{RUNS}/[^/'\\]+-[0-9a-f]{{12}}"), re.compile("[0-9]+")  # from `point_of`, and from SLURM

# Keys that do not change a result: two configurations that differ in them only are one point.
WITHOUT_EFFECT = ("resume", "resume_trusted", "track", "wandb", "tensorboard", "mlflow", "trace")
# Keys of `engine` that do change it.
OF_ENGINE = {
    "sim": ("name", "gradients"),  # gradients only if `none`
    "dist": ("name", "gradients", "threads", "gpus_per_node", "workers_per_gpu", "restarts", "patience_s"),
    "torch": ("name", "threads", "gpus_per_node"),
}


class ManifestError(ValueError):
    """Says in one line why a sweep's folder cannot be used."""


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    id: a hash of its configuration. folder: folder of its record, below the sweep's. tasks: number of processes.
    threads, gpus: number for each task. overrides: its command line. config_dir: folder of the user's own configuration
    files, absolute."""

    id: str
    folder: str
    algo: str
    nodes: int
    seed: int
    engine: str  # sim | dist | torch
    tasks: int
    threads: int
    gpus: int
    overrides: tuple[str, ...]
    config_dir: str | None

    @property
    def name(self) -> str:
        """Return the name of its folder, like gossip_8_1-0123456789ab."""
        return Path(self.folder).name


@dataclass
class Sweep:
    """The contents of a manifest, by the ids of its points.

    tasks: the latest array task of each point, like 12_3. slurm: the `slurm.*` that each point was last submitted with.
    cancelled: points that the user cancelled since they were last submitted. submitting: token and points of
    submissions whose outcome is not known."""

    folder: Path
    points: dict[str, Point] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    slurm: dict[str, tuple[str, ...]] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    submitting: dict[str, list[str]] = field(default_factory=dict)

    def select(self, texts: Sequence[str]) -> list[Point]:
        """Return the points with these ids, names, beginnings of names, or patterns; all points without any.

        Raises ValueError for a text that no point matches."""
        chosen: dict[str, Point] = {} if texts else dict(self.points)
        for text in texts:
            matching = {
                key: point
                for key, point in self.points.items()
                if text in (key, point.name, point.name.partition("-")[0]) or fnmatch.fnmatchcase(point.name, text)
            }
            if not matching:
                names = [point.name.partition("-")[0] for point in self.points.values()]
                near = (difflib.get_close_matches(text, names, n=1) or names or ["gossip_8_1"])[0]
                raise ValueError(f"POINT must be of {self.folder}, like {near}, got {text}")
            chosen.update(matching)
        return list(chosen.values())


def identity(values: Mapping[str, Any]) -> str:
    """Return a hash of a resolved configuration, the same for all configurations with the same result."""
    kept = {key: value for key, value in values.items() if key not in WITHOUT_EFFECT}
    engine = dict(values["engine"])
    engine["name"] = engine_of(values)
    if engine.get("gradients") != "none":
        engine.pop("gradients", None)
    kept["engine"] = {key: engine[key] for key in OF_ENGINE[engine["name"]] if key in engine}
    return hashlib.sha256(json.dumps(_canonical(kept), sort_keys=True).encode()).hexdigest()[:12]


def engine_of(values: Mapping[str, Any]) -> str:
    """Return `sim`, `dist` or `torch`; engine=auto is `dist` in a job of SLURM."""
    return "dist" if (name := str(values["engine"]["name"])) == "auto" else name


def _canonical(value: Any) -> Any:
    """Write 1.0 as 1 and the key 3 as "3", as YAML and JSON do not keep them apart."""
    if isinstance(value, Mapping):
        return {str(key): _canonical(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def point_of(values: Mapping[str, Any], overrides: Sequence[str], config_dir: str | None) -> Point:
    """Make a point of a resolved configuration that has been checked."""
    name, nodes, seed = str(values["algo"]["name"]), int(values["nodes"]), int(values["seed"])
    engine, key = engine_of(values), identity(values)
    return Point(
        id=key,
        folder=f"{RUNS}/{name}_{nodes}_{seed}-{key}",
        algo=name,
        nodes=nodes,
        seed=seed,
        engine=engine,
        tasks=1 if engine == "sim" else nodes,
        threads=values["engine"].get("threads") or 1,
        gpus=(values["engine"].get("gpus_per_node") or 0) if engine != "sim" else 0,
        overrides=tuple(overrides),
        config_dir=config_dir,
    )


def read_sweep(folder: Path) -> Sweep:
    """Read the manifest of a sweep. Raises ManifestError."""
    path, sweep = folder / MANIFEST, Sweep(folder)
    try:
        *lines, _ = read_bounded(path, LARGEST).split(b"\n")  # the text after the last newline is torn, or empty
    except FileNotFoundError as error:
        raise ManifestError(f"--folder must be the folder of a sweep, got {folder} without {MANIFEST}") from error
    except OSError as error:
        raise ManifestError(f"--folder must be readable, got {folder} ({error.strerror})") from error
    for number, line in enumerate(lines, start=1):
        try:
            _apply(sweep, json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ManifestError(f"{path} line {number} is not a line of a manifest: {error!r}") from error
    return sweep


def _apply(sweep: Sweep, event: dict[str, Any]) -> None:
    """Apply one line of the manifest to a sweep."""
    kind = event["event"]
    if kind == "point":
        point = _point(event)
        sweep.points[point.id] = point
    elif kind == "submitting":
        (token,), points, slurm = _texts([event["token"]]), _texts(event["points"]), tuple(_texts(event["slurm"]))
        sweep.submitting[token] = points
        sweep.slurm.update(dict.fromkeys(points, slurm))
    elif kind == "submitted":
        points = sweep.submitting.pop(event["token"])
        if not JOB.fullmatch(event["job"]):
            raise ValueError(f"job {event['job']!r}")
        sweep.tasks.update({point: f"{event['job']}_{index}" for index, point in enumerate(points)})
        sweep.cancelled.difference_update(points)
    elif kind == "refused":
        sweep.submitting.pop(event["token"])
    elif kind == "cancelled":
        sweep.cancelled.update(_texts(event["points"]))
    else:
        raise ValueError(f"event {kind!r}")


def _texts(value: Any) -> list[str]:
    """Return a list of texts. Raises TypeError for anything else."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise TypeError(f"texts {value!r:.100}")
    return value


def _point(event: Mapping[str, Any]) -> Point:
    """Return the point of a line, for a batch script. Raises ValueError, KeyError and TypeError."""
    values = {name: event[name] for name in Point.__dataclass_fields__}
    values["overrides"] = tuple(values["overrides"])
    texts = [*(values[name] for name in ("id", "folder", "algo", "engine")), *values["overrides"]]
    numbers = [values[name] for name in ("nodes", "seed", "tasks", "threads", "gpus")]
    if not all(isinstance(text, str) for text in [*texts, values["config_dir"] or ""]):
        raise TypeError(f"a point of {texts}")
    if not all(type(number) is int for number in numbers):
        raise TypeError(f"a point of {numbers}")
    if not FOLDER.fullmatch(values["folder"]):
        raise ValueError(f"folder {values['folder']!r}")
    return Point(**values)


class ManifestWriter:
    """Appends to a manifest whose lock this process holds."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / MANIFEST

    def add(self, *events: Mapping[str, Any]) -> None:
        """Append lines and flush them to the disk; after a crash, the first few of them may be there."""
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        text = "".join(json.dumps({**event, "time": now}, ensure_ascii=False) + "\n" for event in events)
        try:
            descriptor = open_kept(self._path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise cannot_write(self._path.parent, error) from error
        with open(descriptor, "r+b", buffering=0) as file:
            content = file.read()
            if not content.endswith(b"\n"):
                file.truncate(content.rfind(b"\n") + 1)
            file.write(text.encode())
            os.fsync(file.fileno())

    def points(self, points: Sequence[Point]) -> None:
        self.add(*({"event": "point", **asdict(point)} for point in points))

    def submitting(self, token: str, points: Sequence[Point], slurm: Sequence[str]) -> None:
        names = [point.id for point in points]
        self.add({"event": "submitting", "token": token, "points": names, "slurm": list(slurm)})

    def submitted(self, token: str, job: str) -> None:
        self.add({"event": "submitted", "token": token, "job": job})

    def refused(self, token: str, reason: str) -> None:
        self.add({"event": "refused", "token": token, "reason": reason})

    def cancelled(self, points: Sequence[Point]) -> None:
        self.add({"event": "cancelled", "points": [point.id for point in points]})


def cannot_write(folder: Path, error: OSError) -> ManifestError:
    return ManifestError(f"--folder must be a folder that can be written, got {folder} ({error.strerror})")


@contextmanager
def locked_sweep(folder: Path) -> Iterator[ManifestWriter]:
    """Hold the lock of a sweep's folder, which is made if it is not there.

    The lock works between machines on network file systems, and ends with its process. Raises ManifestError if the
    folder cannot be written, or another process holds the lock for a minute."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(open_kept(folder / LOCK, os.O_WRONLY | os.O_APPEND), "ab")  # noqa: SIM115
    except OSError as error:
        raise cannot_write(folder, error) from error
    with lock:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    message = f"{folder / LOCK} is held by another dsgd-sweep for {LOCK_WAIT_S:g} s ({error.strerror})"
                    raise ManifestError(message) from error
                time.sleep(0.05)
        yield ManifestWriter(folder)
