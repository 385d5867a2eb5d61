"""What a coordinator receives beyond a limit is in files, not in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from dsgd.engines.dist.coordinator.spool import Spool

MIB = 1 << 20

CHILD = """
import re, resource, sys
from pathlib import Path
import torch
from dsgd.engines.dist.coordinator.spool import Spool

def anonymous_mib():
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

folder, file_limit = Path(sys.argv[1]), int(sys.argv[2])
if file_limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
spool = Spool(folder, 64 << 20, lambda line: print(line, end="|"))
before = anonymous_mib()
vectors = [spool.empty(8 << 20, torch.float32) for _ in range(10)]  # 32 MiB each
for i, vector in enumerate(vectors):
    vector.numpy().data.cast("B")[:] = bytes([i + 1]) * vector.nbytes
assert all((vector.view(torch.uint8) == i + 1).all() for i, vector in enumerate(vectors))
print(round(anonymous_mib() - before), len(list(folder.iterdir())))
"""


def child(folder: Path, file_limit: int = 0) -> str:
    line = [sys.executable, "-c", CHILD, str(folder), str(file_limit)]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def test_vectors_beyond_the_limit_take_no_memory_of_the_process(tmp_path: Path) -> None:
    mib, files = child(tmp_path).split()
    assert int(mib) < 64 + 48  # two vectors, and what Python and torch took meanwhile
    assert files == "0"


def test_without_room_on_the_disk_they_are_in_memory_and_a_line_says_so(tmp_path: Path) -> None:
    line, numbers = child(tmp_path, file_limit=MIB).split("|")
    assert line == f"models wait in memory, not in {tmp_path}: File too large"
    assert int(numbers.split()[0]) > 300


def test_room_that_is_free_again_is_used_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "no such folder", 4 * MIB, print)
    for _ in range(100):
        assert spool.empty(MIB // 2, torch.float64).numel() == MIB // 2
    assert spool._held == 0


def test_small_vectors_stay_in_memory(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 0, print)
    vector = spool.empty(100, torch.float64)
    assert vector.dtype == torch.float64
    assert spool._held == 800
