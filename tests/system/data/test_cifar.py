"""What reading a stranger's file takes, and how the published ones are got."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dsgd.data import Cifar
from tests.support.command import in_python


@pytest.mark.parametrize(
    "pickled",
    [
        b"\x80\x02}r\xff\xff\xff\x3f.",  # the 2^30th memo
        b"\x80\x05\x96" + (2**33).to_bytes(8, "little") + b"x.",
        b"\x80\x02cnumpy\nndarray\nJ\x00\x00\x00\x10\x85R.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nJ\x00\x00\x00\x10\x85U\x01b\x87R.",
    ],
    ids=["memo", "bytearray", "array", "array to be filled"],
)
def test_a_pickle_takes_no_memory_for_what_it_does_not_hold(pickled: bytes, tmp_path: Path):
    path = tmp_path / "batch"
    path.write_bytes(pickled)
    program = """
import resource, sys
from pathlib import Path
from dsgd.data.cifar import read_batch
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_batch(Path(sys.argv[1]), "labels", 10)
except ValueError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    assert int(in_python(program, path)) < 2**14  # KiB


def test_the_command_that_fetches_cifar_can_import_torchvision(tmp_path: Path):
    """Also beside a torch that it was not built for, and from a folder that a shell would take apart."""
    root = tmp_path / "it's $HOME"
    with pytest.raises(ValueError, match="get the files by: ") as error:
        Cifar(10, str(root)).check(1, 1)
    line = str(error.value).partition("get the files by: ")[2]
    there = line.replace("download=True", "download=False").replace("python", shlex.quote(sys.executable), 1)
    ended = subprocess.run(there, shell=True, capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1] == (
        "RuntimeError: Dataset not found or corrupted. You can use download=True to download it"
    )
