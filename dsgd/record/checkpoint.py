"""Write and read checkpoints: one line of JSON, which can be read without torch, then the output of torch.save."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsgd.record.writer import write_atomically

NAME = "checkpoint.pt"
FORMAT = 1


class CheckpointError(ValueError):
    """A checkpoint that cannot be read."""


def write_checkpoint(folder: Path, header: dict[str, Any], state: dict[str, Any]) -> None:
    """Replace the checkpoint in a folder; a crash leaves the previous one as it was.

    header: plain values, for `read_header`. state: plain values and tensors, for `read_state`."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    first = {"dsgd_checkpoint": FORMAT, **header}
    signed = {**first, "sha256": _digest(first, payload)}
    write_atomically(folder / NAME, json.dumps(signed).encode() + b"\n" + payload)


def find_checkpoint(path: str) -> Path:
    """Return the checkpoint at a path: a run folder, or a checkpoint itself. Raises CheckpointError."""
    found = Path(path) / NAME if Path(path).is_dir() else Path(path)
    if not found.is_file():
        raise CheckpointError(f"resume must be a checkpoint or a folder with {NAME}, got {path}")
    return found


def read_header(path: Path) -> dict[str, Any]:
    """Read the header of a checkpoint and check that all of it is whole. Raises CheckpointError."""
    first, _, payload = path.read_bytes().partition(b"\n")
    try:
        header = json.loads(first)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        problem = f"resume must be a checkpoint of dsgd, got {path}, which is something else or corrupt"
        raise CheckpointError(problem) from error
    if not isinstance(header, dict) or header.get("dsgd_checkpoint") != FORMAT:
        raise CheckpointError(f"resume must be a checkpoint of dsgd in format {FORMAT}, got {path}")
    if header.pop("sha256", None) != _digest(header, payload):
        raise CheckpointError(f"resume must be a whole checkpoint, got {path}, which is truncated or corrupt")
    return header


def has_header(path: Path, header: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint is still the one whose header this was, without reading the rest. Raises OSError."""
    with path.open("rb") as file:
        first = file.readline()
    try:
        found = json.loads(first)
    except ValueError:
        return False
    return isinstance(found, dict) and {k: v for k, v in found.items() if k != "sha256"} == header


def _digest(header: dict[str, Any], payload: bytes) -> str:
    return hashlib.sha256(json.dumps(header).encode() + payload).hexdigest()


def read_state(path: Path) -> dict[str, Any]:
    """Read the state of a checkpoint, as `write_checkpoint` was given it."""
    import torch

    return torch.load(io.BytesIO(path.read_bytes().partition(b"\n")[2]), weights_only=True)
