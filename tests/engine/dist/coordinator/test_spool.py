"""What a coordinator receives beyond a limit is in files, not in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from dsgd.engines.dist.coordinator.shared_vectors import Spool

MIB = 1 << 20

CHILD = """
import re, resource, sys
from pathlib import Path
import torch
from dsgd.engines.dist.coordinator.shared_vectors import Spool

def anonymous_mib():
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

def fill():
    spool = Spool(folder, 64 << 20, lambda line: print(line, end="|"))
    before = anonymous_mib()
    vectors = [spool.empty(8 << 20, torch.float32) for _ in range(10)]  # 32 MiB each
    for i, vector in enumerate(vectors):
        vector.numpy().data.cast("B")[:] = bytes([i + 1]) * vector.nbytes
    assert all((vector.view(torch.uint8) == i + 1).all() for i, vector in enumerate(vectors))
    print(round(anonymous_mib() - before), len(list(folder.iterdir())))

folder = Path(sys.argv[1])
fill()
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
fill()
"""


def test_vectors_beyond_the_limit_take_no_memory_of_the_process_while_there_is_room_on_the_disk(tmp_path: Path) -> None:
    line = [sys.executable, "-c", CHILD, str(tmp_path)]
    on_disk, in_memory = subprocess.run(line, check=True, capture_output=True, text=True).stdout.splitlines()
    mib, files = on_disk.split()
    assert int(mib) < 64 + 48  # two vectors, and what Python and torch took meanwhile
    assert files == "0"
    said, numbers = in_memory.split("|")
    assert said == f"models wait in memory, not in {tmp_path}: File too large"
    assert int(numbers.split()[0]) > 200


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
