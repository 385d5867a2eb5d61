"""What may happen to a record between two commands: lines of metrics.jsonl change, the checkpoint is another one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from dsgd.record.checkpoint_file import NAME

METRICS = "metrics.jsonl"
REFUSED = {  # what the command says that is to go on with the run; other damage is none
    "other version": "of dsgd 0.1.0 (format 1)",
    **dict.fromkeys(("flipped", "doubled", "swapped", "cut"), "lines of metrics.jsonl as the run wrote them"),
}


def damage(kind: str, folder: Path, place: float) -> bool:
    """Damage a record. place: in [0, 1), where. Returns False if it has nothing that could be damaged so."""
    checkpoint = folder / NAME
    if not checkpoint.exists():
        return False
    if kind == "earlier checkpoint":
        if not (earlier := kept(folder)).exists():
            return False
        checkpoint.write_bytes(earlier.read_bytes())
        return True
    first, payload = checkpoint.read_bytes().split(b"\n", 1)
    header = json.loads(first)
    if kind == "other version":
        del header["sha256"]
        header |= {"dsgd_checkpoint": header["dsgd_checkpoint"] - 1, "dsgd": "0.1.0"}
        digest = hashlib.sha256(json.dumps(header).encode() + payload).hexdigest()
        checkpoint.write_bytes(json.dumps({**header, "sha256": digest}).encode() + b"\n" + payload)
        return True
    lines = (folder / METRICS).read_bytes().splitlines(keepends=True)
    if header["lines"] < 3:
        return False
    at = int(place * (header["lines"] - 1))  # not the last that it counts: behind that one, lines go
    if kind == "flipped":
        digit = next(i for i in range(len(lines[at]) - 1, 0, -1) if lines[at][i : i + 1].isdigit())
        lines[at] = lines[at][:digit] + bytes([lines[at][digit] ^ 1]) + lines[at][digit + 1 :]
    elif kind == "doubled":
        lines.insert(at, lines[at])
    elif kind == "swapped":
        lines[at : at + 2] = lines[at + 1], lines[at]
    else:
        lines[at:] = [lines[at][: len(lines[at]) // 2]]
    (folder / METRICS).write_bytes(b"".join(lines))
    return True


def keep(folder: Path) -> None:
    """Keep the first checkpoint of a run beside its folder."""
    if (folder / NAME).exists() and not kept(folder).exists():
        kept(folder).write_bytes((folder / NAME).read_bytes())


def kept(folder: Path) -> Path:
    return folder.with_suffix(".earlier")
