"""Room on the disk for a summary: nobody else gets it, however full the disk is."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs user and mount namespaces")
def test_a_summary_is_written_while_others_take_every_free_byte(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    script = f"mount -t tmpfs -o size=256k tmpfs {tmp_path} || exit 77; exec {shlex.quote(sys.executable)} - {tmp_path}"
    ended = subprocess.run([*MOUNT, script], input=GREEDY, capture_output=True, text=True, timeout=300)
    if ended.returncode == 77:
        pytest.skip("needs user and mount namespaces")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == ["failed"] * 20
