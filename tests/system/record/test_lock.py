"""The lock of a record folder goes with its owner."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from dsgd.record.lock import FolderInUse, locked
from tests.support.planes import until


def test_a_lock_goes_with_its_owner_and_all_that_it_has_forked(tmp_path: Path) -> None:
    ready, told = os.pipe()
    owner = os.fork()
    if owner == 0:
        try:
            with locked(tmp_path):
                if os.fork() == 0:
                    os.write(told, str(os.getpid()).encode())
                signal.pause()
        finally:
            os._exit(70)
    forked = int(os.read(ready, 20))
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    assert not is_free(tmp_path)
    os.kill(forked, signal.SIGKILL)
    until(lambda: is_free(tmp_path))
    os.close(ready)
    os.close(told)


def is_free(folder: Path) -> bool:
    try:
        with locked(folder):
            return True
    except FolderInUse:
        return False
