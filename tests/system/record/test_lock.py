"""The lock of a record folder goes with its owner."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from dsgd.record.lock import FolderInUse, locked

PATIENCE_S = 60  # after which a test gives up


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
    with pytest.raises(FolderInUse), locked(tmp_path):
        pass
    os.kill(forked, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with locked(tmp_path):
                break
        except FolderInUse:  # it is not quite gone
            assert time.monotonic() < deadline
            time.sleep(0.01)
    os.close(ready)
    os.close(told)
