"""A checkpoint takes no more memory than a few times its bytes, and torch sees only what torch has written."""

from __future__ import annotations

import io
import pickle
import struct
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._utils import _rebuild_tensor_v2

from dsgd.record.checkpoint_file import NAME, CheckpointError, read_header, read_state, write_checkpoint
from dsgd.record.stored_state import MEMBERS, check_stored
from tests.support.command import PATIENCE_S

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


def rewritten(change: Callable[[str, bytes], bytes] = lambda _, data: data, method: int = zipfile.ZIP_STORED) -> bytes:
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


def overlapping() -> bytes:
    """As many more members as make the bytes of a bomb, all with those of the first storage."""
    content = rewritten(lambda name, data: bytes(2**20) if name.endswith("data/0") else data)
    count, at = struct.unpack("<H", content[-12:-10])[0], struct.unpack("<L", content[-6:-2])[0]
    more = LARGE // 2**20
    (entry,) = (e for e in content[at:-22].split(b"PK\1\2")[1:] if e[42:].startswith(b"archive/data/0"))
    names = [b"archive/more/%04d" % number for number in range(more)]
    longer = len(names[0]) - len(b"archive/data/0")
    length = struct.pack("<H", struct.unpack("<H", entry[24:26])[0] + longer)
    entries = [b"PK\1\2" + entry[:24] + length + entry[26:42] + name + entry[56:] for name in names]
    directory = content[at:-22] + b"".join(entries)
    end = struct.pack("<4sHHHHLLH", b"PK\5\6", 0, 0, count + more, count + more, len(directory), at, 0)
    return content[:at] + directory + end


def two_directories() -> bytes:
    """Another archive's directory before that of a good one, which its end names."""
    bad, good = packed(), saved()
    shift = len(bad) - 22
    end = bytearray(good[-22:])
    end[16:20] = bad[-6:-2]
    return bad[:shift] + good[:-22] + bytes(end)


def storage_pickle(count: int, key: str = "0", location: str = "cpu", size: int = 6, stride: int = 1) -> bytes:
    """A pickle of a tensor, as torch writes it, over a storage that is said to have `count` elements."""

    storage = object()

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return ("storage", torch.FloatStorage, key, location, count) if obj is storage else None

    class Tensor:
        def __reduce__(self) -> Any:
            return _rebuild_tensor_v2, (storage, 0, (size,), (stride,), False, OrderedDict())

    file = io.BytesIO()
    Pickler(file, 2).dump({"vectors": [Tensor()]})
    return file.getvalue()


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "deflated": (packed, "it is compressed"),
    "one deflated byte": (lambda: rewritten(method=zipfile.ZIP_BZIP2), "it is compressed"),
    "overlapping": (overlapping, "more than are in it"),
    "another directory": (two_directories, "it has another directory"),
    "a comment": (lambda: saved()[:-2] + b"\1\0x", "something follows its directory"),
    "cut off": (lambda: saved()[:-1], "it is no archive"),
    "no archive": (lambda: b"x" * 100, "it is no archive"),
    "nothing": (lambda: b"", "it is no archive"),
    "a pickle": (lambda: pickle.dumps(STATE["numbers"], 2), "it is no archive"),
    "many members": (lambda: b"PK\1\2" * (MEMBERS + 1), f"more than {MEMBERS} members"),
    "a bytearray of any size": (
        lambda: with_pickle(b"\x80\x02cbuiltins\nbytearray\n\x8a\x05" + LARGE.to_bytes(5, "little") + b"\x85R."),
        "it names builtins.bytearray",
    ),
    "a bytearray by itself": (
        lambda: with_pickle(b"\x80\x05\x96" + LARGE.to_bytes(8, "little") + b"x."),
        "",
    ),
    "a function": (lambda: with_pickle(b"\x80\x02cos\nsystem\nX\x04\0\0\0true\x85R."), "it names os.system"),
    "a class": (lambda: with_pickle(b"\x80\x02ctorch\nTensor\n)R."), "it names torch.Tensor"),
    "state of an object": (lambda: with_pickle(b"\x80\x02}}b."), "it has BUILD"),
    "a long storage": (lambda: with_pickle(storage_pickle(2**26)), "a storage of another size"),
    "a short storage": (lambda: with_pickle(storage_pickle(5)), "a storage of another size"),
    "no storage": (lambda: with_pickle(storage_pickle(6, "nothing")), "a storage of another size"),
    "a storage elsewhere": (lambda: with_pickle(storage_pickle(6, location="meta")), "a storage of another size"),
    "a long tensor": (lambda: with_pickle(storage_pickle(6, size=2**40, stride=0)), "larger than its storage"),
    "a tensor backwards": (lambda: with_pickle(storage_pickle(6, size=-6)), "larger than its storage"),
    "no pickle": (lambda: with_pickle(b""), ""),
}


def test_what_torch_writes_is_read(tmp_path: Path) -> None:
    check_stored(saved())
    write_checkpoint(tmp_path, {"lines": 0}, STATE)
    found = read_state(tmp_path / NAME)
    assert found["numbers"] == STATE["numbers"]
    for vector, before in zip(found["vectors"], STATE["vectors"], strict=True):
        assert torch.equal(vector, before)
    assert read_header(tmp_path / NAME)["lines"] == 0


def test_an_archive_that_needs_longer_numbers_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of more than 65,535 vectors, or 4 GiB: what torch writes for it has a second end."""
    state = {"vectors": [torch.ones(1) for _ in range(66_000)]}
    content = saved(state)
    assert content[-42:-38] == b"PK\6\7"
    check_stored(content)


@pytest.mark.parametrize("kind", BAD)
def test_what_torch_does_not_write_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, why = BAD[kind]
    content = make()
    monkeypatch.setattr(torch, "save", lambda _, file: file.write(content))
    write_checkpoint(tmp_path, {"lines": 0}, {})
    read_header(tmp_path / NAME)  # the digest is right

    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("torch has seen it")

    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(CheckpointError, match=r"^resume must be a whole checkpoint, got [^\n]*$") as caught:
        read_state(tmp_path / NAME)
    assert why in str(caught.value)
    assert "torch has seen it" not in str(caught.value)


MEASURE = """
import resource, sys
from pathlib import Path
import torch
from dsgd.record.checkpoint_file import CheckpointError, read_header, read_state
torch.load  # what importing takes does not count
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_header(Path(sys.argv[1]))
    read_state(Path(sys.argv[1]))
except CheckpointError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def peak_kib(path: Path) -> int:
    """By how much reading a checkpoint, which is refused, raises the peak of a process's memory."""
    ended = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return int(ended.stdout)


@pytest.mark.parametrize("kind", ["deflated", "overlapping", "a bytearray of any size", "a long tensor"])
def test_a_bomb_takes_a_few_times_its_bytes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = BAD[kind][0]()
    monkeypatch.setattr(torch, "save", lambda _, file: file.write(content))
    write_checkpoint(tmp_path, {"lines": 0}, {})
    assert peak_kib(tmp_path / NAME) < 2**14 + 5 * len(content) // 1024 < LARGE // 1024 // 4


@pytest.mark.parametrize("value", [b"[]", b"{}", b"1", b'""'])
def test_a_long_header_is_not_built(value: bytes, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b'{"a": [' + b",".join([value] * 4_000_000) + b"]}\n")
    assert peak_kib(tmp_path / NAME) < 2**16
