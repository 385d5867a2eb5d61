"""Tar files whose headers lie, built byte by byte."""

from __future__ import annotations

import tarfile
from io import BytesIO


def archive(*members: tuple[str, bytes]) -> bytes:
    """An honest tar file."""
    file = BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as written:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            written.addfile(member, BytesIO(content))
    return file.getvalue()


def entry(name: bytes, size: int, kind: bytes = b"0", content: bytes = b"x") -> bytes:
    """A member that says it has `size` bytes, of any sign and magnitude, and its content."""
    octal = b"%011o\0" % size if 0 <= size < 8**11 else _base_256(size)
    head = bytearray(512)
    head[: len(name)] = name
    head[100:136] = b"0000644\0" + b"0000000\0" * 2 + octal
    head[136:157] = b"00000000000\0" + b" " * 8 + kind
    head[257:265] = b"ustar\x0000"
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + content + bytes(-len(content) % 512)


def _base_256(number: int) -> bytes:
    return (b"\x80" if number >= 0 else b"\xff") + (number % (1 << 88)).to_bytes(11, "big")


def pax(records: bytes) -> bytes:
    """The header before a member that tells more of it."""
    return entry(b"x", len(records), b"x", records)
