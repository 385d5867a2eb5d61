"""Room on the disk for a summary: it becomes the summary, and nothing else."""

from __future__ import annotations

from pathlib import Path

from dsgd.record.safe_files import ROOM, ROOM_BYTES, room_kept, write_in_room


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
