"""A tar file whose headers lie is refused in one line that names it, and takes no more memory than its size."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from dsgd.data.images.layout import find_images, read_shards
from tests.support.each_row import each_row
from tests.support.hostile_tar import archive, entry, pax

GOOD = archive(("a.jpg", b"x" * 600), ("a.cls", b"0"))
LONG = b"././@LongLink"
HUGE = 2**80
# what the file holds; what the line must contain
CASES = {
    "a label of 20 digits": (archive(("a.jpg", b"x"), ("a.cls", b"9" * 20)), "a.cls must hold an integer >= 0"),
    "a name of two lines": (archive(("a\nb.jpg", b"x")), r"'a\nb' is alone"),
    "a name that is no text": (entry(b"\xff.jpg", 1) + bytes(1024), r"'\udcff' is alone"),
    "a huge size": (entry(b"a.jpg", HUGE) + bytes(1024), f"a.jpg ends at {HUGE + 512}, cut off"),
    "a size beyond the end": (GOOD[:2560] + entry(b"b.jpg", 2**62) + bytes(1024), "b.jpg ends at 4611686018427390976"),
    "a negative size": (GOOD[:2560] + entry(b"b.jpg", -2048) + bytes(1024), "b.jpg is -2048 bytes"),
    "a long name of any size": (entry(LONG, HUGE, b"L") + GOOD, f"at 0: a name of {HUGE} bytes"),
    "a long name of a negative size": (entry(LONG, -1000, b"L") + GOOD, "at 0"),
    "many long names": (entry(LONG, 1, b"L") * 3000 + GOOD, "at 0: too many headers of one member"),
    "a pax header of any size": (entry(b"x", 2**62, b"x") + GOOD, "at 0: a name of 4611686018427387904 bytes"),
    "a pax size": (pax(b"30 size=99999999999999999999\n") + GOOD, "a.jpg ends at 1000"),
    "a negative pax size": (pax(b"13 size=-512\n") + GOOD, "a.jpg is -512 bytes"),
    "a pax length": (pax(b"9" * 400 + b" path=a\n") + GOOD, "at 0"),
    "a pax map": (pax(b"25 GNU.sparse.map=1,2,xy\n") + GOOD, "at 0"),
    "many pax headers": (pax(b"6 a=b\n") * 3000 + GOOD, "at 0: too many headers of one member"),
    "holes": (entry(b"a.jpg", 0, b"S", b"") + GOOD, "a.jpg is 0 bytes, or has holes"),
}


@each_row("name", CASES)
def test_a_shard_that_lies_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    content, part = CASES[name]
    for split in ("train", "val"):
        (tmp_path / f"{split}-0.tar").write_bytes(content)
    with pytest.raises(ValueError, match=rf"^data\.path must hold .*, got {tmp_path}/train-0\.tar: ") as error:
        find_images(str(tmp_path))
    assert part in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 500


def test_labels_far_apart_take_no_memory(tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / f"{split}-0.tar").write_bytes(archive(("a.jpg", b"x"), ("a.cls", b"999999999")))
    with pytest.raises(ValueError, match=r"^data\.path must hold images of every class, found none of label 0 in "):
        find_images(str(tmp_path))


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.tar")
    (tmp_path / "endless.tar").symlink_to("/dev/zero")
    (tmp_path / "folder.tar").mkdir()
    for name, reason in [("fifo", "not a regular file"), ("endless", "not a regular file"), ("folder", "")]:
        path = tmp_path / f"{name}.tar"
        expected = rf"^data\.path must hold readable tar files, got {re.escape(str(path))}: {reason}"
        with pytest.raises(ValueError, match=expected):
            read_shards([str(path)])
