"""Write and read checkpoints: one line of JSON, which can be read without torch, then the output of torch.save."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import version
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import IO, Any, cast

from dsgd.host.files import regular_file
from dsgd.record.safe_files import json_object, write_atomically

NAME = "checkpoint.pt"
FORMAT = 2  # changes with the state that a run needs to resume
HEADER_BYTES, PIECE_BYTES = 2**24, 2**20
SIGNATURE = 64  # characters
REASON = 200  # characters of it
NUMBER = (int, float)
# The keys that a run needs to resume, and their types: a right signature only shows that a file is whole.
HEADER = {"config": dict, "engine": str, "lines": int, "lines_sha256": str, "wall_s": NUMBER}
STATE = {
    "sim": {"fingerprint": dict, "progress": dict, "vectors": list},
    "dist": {"time_s": NUMBER, "progress": dict, "next": list, "lost": list, "workers": list, "servers": list},
    "torch": {"time_s": NUMBER, "progress": dict, "workers": list},
}
LOST = {"steps": int, "counters": dict}  # a worker that will start from the others' parameters
WORKER = {**LOST, "vectors": dict, "batches": int, "rng": dict}
SERVER = {"counters": dict, "vectors": dict}
PROGRESS = {"marks": int, "next_samples": int, "next_time": int, "recent": list}


class CheckpointError(ValueError):
    """A checkpoint that cannot be read."""


def write_checkpoint(folder: Path, header: dict[str, Any], state: dict[str, Any]) -> None:
    """Replace the checkpoint in a folder; a crash keeps the previous one. The state is written to the disk without a
    copy in memory.

    header: plain values, for `read_header`. state: plain values and tensors, for `read_state`. Raises OSError."""
    import torch

    first = _first(header)

    def write(file: BufferedWriter) -> None:
        file.write(_first_line(first, "0" * SIGNATURE))
        payload = _Payload(file, first)
        try:
            torch.save(state, cast("IO[bytes]", payload))
        except RuntimeError as error:  # torch's own, after one of the file's
            raise payload.error or error from error
        file.seek(0)
        file.write(_first_line(first, payload.digest.hexdigest()))

    write_atomically(folder / NAME, write)


class _Payload:
    """The part of a file behind its first line, in the format of `torch.save`. digest: digest of the line and this
    part. error: error of the file."""

    def __init__(self, file: BufferedWriter, first: dict[str, Any]) -> None:
        self._file = file
        self.digest = hashlib.sha256(json.dumps(first).encode())
        self.error: OSError | None = None

    def write(self, piece: bytes) -> int:
        self.digest.update(piece)
        try:
            return self._file.write(piece)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._file.flush()


def with_header(path: Path, header: dict[str, Any]) -> bytes:
    """Return the checkpoint at a path with another header, and an unchanged state. Raises OSError."""
    with regular_file(path) as (file, _), BufferedReader(file) as whole:
        whole.readline(HEADER_BYTES)
        payload = whole.read()
    return _signed(header, payload)


def _signed(header: dict[str, Any], payload: bytes) -> bytes:
    first = _first(header)
    return _first_line(first, _digest(first, [payload])) + payload


def _first(header: dict[str, Any]) -> dict[str, Any]:
    return {"dsgd_checkpoint": FORMAT, "dsgd": version("dsgd"), **header}


def _first_line(first: dict[str, Any], signature: str) -> bytes:
    return json.dumps({**first, "sha256": signature}).encode() + b"\n"


def find_checkpoint(path: str) -> Path:
    """Return the checkpoint at a path: a run folder, or a checkpoint itself. Raises CheckpointError."""
    checkpoint, there = Path(path), False
    with suppress(OSError, ValueError):  # of a name that no file can have
        checkpoint = checkpoint / NAME if checkpoint.is_dir() else checkpoint
        there = checkpoint.is_file()
    if not there:
        raise CheckpointError(f"resume must be a checkpoint or a folder with {NAME}, got {path}")
    return checkpoint


def read_header(path: Path) -> dict[str, Any]:
    """Read the header of a checkpoint and check that all of it is whole. Raises CheckpointError."""
    try:
        with regular_file(path) as (file, _), BufferedReader(file) as whole:
            first = whole.readline(HEADER_BYTES)
            header = json_object(first) if first.endswith(b"\n") else None
            signature = None if header is None else header.pop("sha256", None)
            digest = "" if header is None else _digest(header, iter(lambda: whole.read(PIECE_BYTES), b""))
    except OSError as error:
        raise CheckpointError(f"resume must be a checkpoint, got {path}: {error.strerror}") from error
    if header is None:
        raise CheckpointError(f"resume must be a checkpoint of dsgd, got {path}, which is something else or corrupt")
    if header.get("dsgd_checkpoint") != FORMAT:
        ours, theirs = f"dsgd {version('dsgd')} (format {FORMAT})", header.get("dsgd", "0.2.0 or before")
        got = f"{path} of dsgd {theirs!s:.20} (format {header.get('dsgd_checkpoint')!r:.20})"
        raise CheckpointError(f"resume must be a checkpoint of {ours}, got {got}")
    if signature != digest:
        raise CheckpointError(f"resume must be a whole checkpoint, got {path}, which is truncated or corrupt")
    return header


def has_header(path: Path, header: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint still has this header, without reading its state. Raises OSError."""
    with regular_file(path) as (file, _), BufferedReader(file) as whole:
        content = json_object(whole.readline(HEADER_BYTES))
    return content is not None and {k: v for k, v in content.items() if k != "sha256"} == header


def check_header(header: Mapping[str, Any], path: Path) -> None:
    """Raise CheckpointError unless a header has all that a run needs to resume. path: path of the checkpoint."""
    _check(header, HEADER, "the header", path)
    if header["engine"] not in STATE or not 0 <= header["lines"] < 2**32 or not 0 <= header["wall_s"] < math.inf:
        given = {key: header[key] for key in ("engine", "lines", "wall_s")}
        raise CheckpointError(f"resume must be a checkpoint of a run, got {path}, whose header says {given}")


def _check(values: Any, needed: Mapping[str, Any], where: str, path: Path) -> None:
    """Raise CheckpointError unless there is a value of the right type for every key that is needed."""
    for key, kind in needed.items():
        value = values.get(key) if isinstance(values, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            got = f"{where} of which has no {key}" if value is None else f"{where} of which has {key}={value!r:.40}"
            raise CheckpointError(f"resume must be a checkpoint with all that a run needs, got {path}, {got}")


def _digest(header: dict[str, Any], payload: Iterable[bytes]) -> str:
    digest = hashlib.sha256(json.dumps(header).encode())
    for piece in payload:
        digest.update(piece)
    return digest.hexdigest()


def read_state(path: Path) -> dict[str, Any]:
    """Read the state of a checkpoint, as `write_checkpoint` was given it. Raises CheckpointError."""
    from dsgd.record.stored_state import load_stored  # imports torch

    try:
        with regular_file(path) as (file, _), BufferedReader(file) as whole:
            whole.readline(HEADER_BYTES)
            content = whole.read()
        return load_stored(content)
    except Exception as error:  # any other content may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:REASON]}"
        raise CheckpointError(f"resume must be a whole checkpoint, got {path}: {reason}") from error


def check_state(state: Any, engine: str, workers: int, path: Path) -> None:
    """Raise CheckpointError unless a state has all that an engine needs to resume a run of `workers` workers."""
    from torch import Tensor

    _check(state, STATE[engine], "the state", path)
    _check(state["progress"], PROGRESS, "the progress", path)
    if engine == "sim":
        _check(state["fingerprint"], {"events": int}, "the fingerprint", path)
        tensors = [state["vectors"]]
    else:
        members = list(state.get("servers", ()))
        for stored in state["workers"]:
            is_lost = engine == "dist" and isinstance(stored, dict) and stored.keys() == LOST.keys()
            _check(stored, LOST if is_lost else WORKER, "a worker", path)
            if not is_lost:
                _check(stored["vectors"], {"x": Tensor, "buffers": Tensor}, "a worker", path)
                members.append(stored)
        for stored in members:
            _check(stored, SERVER, "a server or worker", path)
        if len(state["workers"]) != workers:
            got = f"{path} of {len(state['workers'])} workers"
            raise CheckpointError(f"resume must be a checkpoint of {workers} workers, got {got}")
        tensors = [list(stored["vectors"].values()) for stored in members]
    if not all(isinstance(vector, Tensor) for vectors in tensors for vector in vectors):
        raise CheckpointError(f"resume must be a checkpoint whose vectors are tensors, got {path}")
