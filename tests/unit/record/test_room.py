"""Room on the disk for a summary: nobody else gets it, however full the disk is."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsgd.record.room import ROOM, ROOM_BYTES, room_kept, write_in_room

MOUNT = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
# Ends runs while another process takes every byte that becomes free.
GREEDY = """
import json, os, sys
from pathlib import Path
from dsgd.record.room import room_kept
from dsgd.record.writer import Record

disk, ended = Path(sys.argv[1]), []
for number in range(20):
    folder = disk / str(number)
    folder.mkdir()
    with room_kept(folder):
        record = Record(folder, {"nodes": 2}, ["cpu"])
        taker = os.fork()
        if taker == 0:
            with (folder / "taken").open("ab", buffering=0) as file:
                while True:
                    try:
                        file.write(b"0" * 4096)
                    except OSError:
                        (disk / "full").exists() or os.open(disk / "full", os.O_CREAT)
        while not (disk / "full").exists():
            pass
        record.finish({"status": "failed"})
        os.kill(taker, 9)
        os.waitpid(taker, 0)
    ended.append(json.loads((folder / "summary.json").read_text())["status"])
    (folder / "taken").unlink()
    (disk / "full").unlink()
print(json.dumps(ended))
"""


def test_the_room_becomes_the_file_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    for content in (b"short", b"x" * (2 * ROOM_BYTES)):
        with room_kept(tmp_path):
            assert (tmp_path / ROOM).stat().st_blocks * 512 >= ROOM_BYTES
            number = (tmp_path / ROOM).stat().st_ino
            write_in_room(path, content)
            assert (path.stat().st_ino, path.read_bytes()) == (number, content)
        assert list(tmp_path.iterdir()) == [path]
    write_in_room(path, b"without room")
    assert path.read_bytes() == b"without room"
    with room_kept(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == [path]


def test_a_room_that_somebody_has_made_a_link_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"as it was")
    (tmp_path / ROOM).symlink_to(tmp_path / "victim")
    write_in_room(tmp_path / "summary.json", b"new")
    assert (tmp_path / "summary.json").read_bytes() == b"new"
    assert (tmp_path / "victim").read_bytes() == b"as it was"
    assert not (tmp_path / ROOM).exists()


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs user and mount namespaces")
def test_a_summary_is_written_while_others_take_every_free_byte(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    script = f"mount -t tmpfs -o size=256k tmpfs {tmp_path} || exit 77; exec {shlex.quote(sys.executable)} - {tmp_path}"
    ended = subprocess.run([*MOUNT, script], input=GREEDY, capture_output=True, text=True, timeout=300)
    if ended.returncode == 77:
        pytest.skip("needs user and mount namespaces")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == ["failed"] * 20
