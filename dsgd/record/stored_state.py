"""Check what `torch.save` has written before torch reads it: a stranger's file takes no more memory than it has bytes.

torch unpacks what is deflated, takes a storage to be as long as its pickle says, and calls `bytearray` with any number.
Here the directory of the archive is held against the length of the file, and the pickle is read without torch.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

MEMBERS = 2**18  # of an archive, one for each vector: a run of 16,384 workers has some for each
ENTRY, END, LOCATOR, END_BYTES, LOCATOR_BYTES, END64_BYTES = b"PK\1\2", b"PK\5\6", b"PK\6\7", 22, 20, 56
ITEM_BYTES = {"Double": 8, "Float": 4, "Half": 2, "BFloat16": 2, "Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1}
ITEM_BYTES |= {"Bool": 1, "ComplexFloat": 8, "ComplexDouble": 16}
# What protocol 2 of pickle writes for plain values and tensors. None takes more memory than it has bytes.
OPCODES = {"PROTO", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "LONG4"}
OPCODES |= {"BINFLOAT", "BINUNICODE", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "BINPERSID", "GLOBAL", "REDUCE"}
OPCODES |= {"EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS"}
OPCODES |= {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}


def check_stored(content: bytes) -> None:
    """Raise ValueError unless this is an archive of plain values and tensors that torch can read in about its size."""
    sizes = _members(content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        top = next(iter(sizes)).partition("/")[0]
        if not all(name.startswith(f"{top}/") for name in sizes) or f"{top}/data.pkl" not in sizes:
            raise ValueError("it has no data.pkl, or files beside it")
        pickled = archive.read(f"{top}/data.pkl")
    if unknown := {opcode.name for opcode, _, _ in pickletools.genops(pickled)} - OPCODES:
        raise ValueError(f"it has {', '.join(sorted(unknown))}")
    _Rehearsal(pickled, {name.removeprefix(f"{top}/data/"): size for name, size in sizes.items()}).load()


def _members(content: bytes) -> dict[str, int]:
    """Return the sizes of the members of an archive, in its order, without reading them. Raises ValueError."""
    if content.count(ENTRY) > MEMBERS:
        raise ValueError(f"it has more than {MEMBERS} members")
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except (zipfile.BadZipFile, NotImplementedError, OSError, struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"it is no archive: {error}") from error
    with archive:
        if archive.start_dir != _directory_at(content):
            raise ValueError("it has another directory")
        members = archive.infolist()
        sizes = {member.filename: member.file_size for member in members}
        if any(m.compress_type != zipfile.ZIP_STORED or m.file_size != m.compress_size for m in members):
            raise ValueError("it is compressed")
        if not sizes or len(sizes) < len(members) or sum(sizes.values()) > len(content):
            raise ValueError("it has no members, or more than are in it")
    return sizes


def _directory_at(content: bytes) -> int:
    """Return where the directory of an archive begins, as torch finds it. Raises ValueError for another form than
    torch's: zipfile would look elsewhere."""
    end, locator = content[-END_BYTES:], content[-END_BYTES - LOCATOR_BYTES : -END_BYTES]
    if not end.startswith(END) or end[-2:] != b"\0\0":
        raise ValueError("something follows its directory")
    if not locator.startswith(LOCATOR):
        return struct.unpack("<L", end[16:20])[0]
    at = len(content) - END_BYTES - LOCATOR_BYTES - END64_BYTES
    if struct.unpack("<Q", locator[8:16])[0] != at:
        raise ValueError("it has another directory")
    return struct.unpack("<Q", content[at + 48 : at + 56])[0]


class _Rehearsal(pickle._Unpickler):
    """Reads a pickle in Python, with the number of elements in place of every storage and nothing for a tensor."""

    def __init__(self, pickled: bytes, sizes: dict[str, int]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._sizes = sizes

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _check_tensor
        item = ITEM_BYTES.get(name.removesuffix("Storage")) if name.endswith("Storage") else None
        if module != "torch" or item is None:
            raise ValueError(f"it names {module}.{name}")
        return item

    def persistent_load(self, pid: Any) -> int:
        kind, item, key, location, count = pid
        if (kind, location) != ("storage", "cpu") or count < 0 or self._sizes.get(key) != count * item:
            raise ValueError("it has a storage of another size")
        return count


def _check_tensor(storage: int, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> None:
    if offset < 0 or min([*size, *stride], default=0) < 0 or offset + math.prod(size) > storage:
        raise ValueError("it has a tensor larger than its storage")
