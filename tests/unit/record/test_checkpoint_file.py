"""A checkpoint goes to the disk as it is made, and an error on the way leaves the one before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dsgd.record.checkpoint_file import NAME, read_header, read_state, with_header, write_checkpoint

HEADER = {"config": {}, "engine": "dist", "lines": 0, "wall_s": 0.0}

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
    output = subprocess.run([sys.executable, "-c", PEAK, tmp_path], check=True, capture_output=True, text=True).stdout
    assert float(output) < 64  # of 384


def test_what_was_written_is_read_and_signed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, HEADER, {"x": torch.arange(1000.0), "n": 5})
    assert read_header(tmp_path / NAME) == {"dsgd_checkpoint": 1, **HEADER}
    state = read_state(tmp_path / NAME)
    assert torch.equal(state["x"], torch.arange(1000.0))
    assert state["n"] == 5
    whole = (tmp_path / NAME).read_bytes()
    assert with_header(tmp_path / NAME, HEADER) == whole  # the same, made from the payload


@pytest.mark.parametrize("room", [100, 5000, 300_000])
def test_an_error_of_the_disk_is_told_as_one(tmp_path: Path, room: int) -> None:
    write_checkpoint(tmp_path, HEADER, {"x": torch.zeros(1)})
    before = (tmp_path / NAME).read_bytes()
    script = (
        "import errno, resource, sys, torch\n"
        "from pathlib import Path\n"
        "from dsgd.record.checkpoint_file import write_checkpoint\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))\n"
        "try:\n"
        "    write_checkpoint(Path(sys.argv[1]), {}, {'x': torch.zeros(100_000)})\n"
        "except OSError as error:\n"
        "    print(errno.errorcode[error.errno])\n"
    )
    output = subprocess.run([sys.executable, "-c", script, tmp_path], check=True, capture_output=True, text=True).stdout
    assert output == "EFBIG\n"
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).read_bytes() == before
