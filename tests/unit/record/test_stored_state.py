"""What torch has written is read; anything else is refused and runs nothing."""

from __future__ import annotations

import io
import pickle
import resource
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._utils import _rebuild_tensor_v2

from dsgd.record.checkpoint_file import NAME, CheckpointError, read_header, read_state, write_checkpoint
from dsgd.record.stored_state import load_stored
from tests.support.each_row import each_row

STATE = {
    "fingerprint": {"events": 3, "streams": "87f5", "none": None, "flag": True},
    "numbers": [1, -1, 300, 70_000, -(2**31), 2**40, 2**70, 0.5, float("inf")],
    "vectors": [torch.arange(6.0), torch.zeros(0), torch.ones(2, 3)[:, 0], torch.ones(3, dtype=torch.float64)],
    "rng": {"state": (1, 2, (3,)), "words": [torch.zeros(4, dtype=torch.uint8), torch.tensor([True])]},
}
LARGE = 2**28  # bytes that a bomb would take


def saved(state: Any = STATE) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def rewritten(change: Callable[[str, bytes], bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """The archive of a state with other contents."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved())) as before, zipfile.ZipFile(out, "w", method) as archive:
        for name in before.namelist():
            archive.writestr(name, change(name, before.read(name)))
    return out.getvalue()


def with_pickle(pickled: bytes) -> bytes:
    return rewritten(lambda name, data: pickled if name.endswith("data.pkl") else data)


def packed() -> bytes:
    return rewritten(lambda name, data: bytes(LARGE) if name.endswith("data/0") else data, zipfile.ZIP_DEFLATED)


def storage_pickle(count: int, key: str = "0", size: int = 6, stride: int = 1) -> bytes:
    """A pickle of a tensor, as torch writes it, over a storage that is said to have `count` elements."""

    storage = object()

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return ("storage", torch.FloatStorage, key, "cpu", count) if obj is storage else None

    class Tensor:
        def __reduce__(self) -> Any:
            return _rebuild_tensor_v2, (storage, 0, (size,), (stride,), False, OrderedDict())

    file = io.BytesIO()
    Pickler(file, 2).dump({"vectors": [Tensor()]})
    return file.getvalue()


BOMBS: dict[str, Callable[[], bytes]] = {
    "deflated": packed,
    "a bytearray of any size": (
        # more than a process of many tests may have kept of memory that it freed
        lambda: with_pickle(b"\x80\x02cbuiltins\nbytearray\n\x8a\x05" + (2**36).to_bytes(5, "little") + b"\x85R.")
    ),
    "a long storage": lambda: with_pickle(storage_pickle(2**26)),
    "a long tensor": lambda: with_pickle(storage_pickle(6, size=2**40, stride=0)),
}
BAD: dict[str, Callable[[], bytes]] = {
    **BOMBS,
    "cut off": lambda: saved()[:-1],
    "no archive": lambda: b"x" * 100,
    "nothing": lambda: b"",
    "a function": lambda: with_pickle(b"\x80\x02cos\nsystem\nX\x04\0\0\0true\x85R."),
    "state of an object": lambda: with_pickle(b"\x80\x02}}b."),
    "no storage": lambda: with_pickle(storage_pickle(6, "nothing")),
    "a tensor backwards": lambda: with_pickle(storage_pickle(6, size=-6)),
    "no pickle": lambda: with_pickle(b""),
}


def write(folder: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a checkpoint with this content, whose digest is right."""
    with monkeypatch.context() as patched:
        patched.setattr(torch, "save", lambda _, file: file.write(content))
        write_checkpoint(folder, {"lines": 0}, {})
    return folder / NAME


def test_what_torch_writes_is_read(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    write_checkpoint(tmp_path, {"lines": 0}, STATE)
    found = read_state(tmp_path / NAME)
    assert found["numbers"] == STATE["numbers"]
    for vector, before in zip(found["vectors"], STATE["vectors"], strict=True):
        assert torch.equal(vector, before)
    assert read_header(tmp_path / NAME)["lines"] == 0
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


def test_values_that_hold_each_other_are_read_once() -> None:
    """However many paths lead to a value."""
    level: list[Any] = [torch.zeros(1)]
    for _ in range(40):
        level = [level] * 9
    assert len(load_stored(saved(level))) == 9


@each_row("kind", BAD)
def test_anything_else_is_refused_in_one_line(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, BAD[kind](), monkeypatch)
    read_header(path)
    with pytest.raises(CheckpointError, match=r"^resume must be a whole checkpoint, got [^\n]*$"):
        read_state(path)
