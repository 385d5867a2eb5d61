"""A checkpoint takes little more memory than a few times its bytes, whoever has written it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dsgd.record.checkpoint_file import NAME
from tests.support.command import in_python
from tests.unit.record.test_stored_state import BOMBS, LARGE, write

PEAK = """
import re, sys
from pathlib import Path
import torch
from dsgd.record.checkpoint_file import write_checkpoint

def status_mib(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024

write_checkpoint(Path(sys.argv[1]), {}, {"x": torch.zeros(1)})  # imports and buffers
state = {"x": [torch.ones(32 << 20) for _ in range(3)]}  # 128 MiB each
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
before = status_mib("VmRSS")
write_checkpoint(Path(sys.argv[1]), {}, state)
print(status_mib("VmHWM") - before)
"""


def test_a_state_is_not_copied_in_memory(tmp_path: Path) -> None:
    assert float(in_python(PEAK, tmp_path)) < 64  # of 384


MEASURE = """
import resource, sys
from pathlib import Path
import dsgd.record.stored_state  # what importing takes does not count
from dsgd.record.checkpoint_file import CheckpointError, read_header, read_state
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_header(Path(sys.argv[1]))
    read_state(Path(sys.argv[1]))
except CheckpointError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def peak_kib(path: Path) -> int:
    """By how much reading a checkpoint, which is refused, raises the peak of a process's memory."""
    return int(in_python(MEASURE, path))


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is limited on Linux only")
@pytest.mark.parametrize("kind", ["deflated", "a long tensor"])
def test_a_bomb_takes_a_few_times_its_bytes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = BOMBS[kind]()
    assert peak_kib(write(tmp_path, content, monkeypatch)) < 2**16 + 5 * len(content) // 1024 < LARGE // 1024 // 2


def test_a_long_header_is_not_built(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b'{"a": [' + b",".join([b"[]"] * 4_000_000) + b"]}\n")
    assert peak_kib(tmp_path / NAME) < 2**16
