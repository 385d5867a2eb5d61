"""A process for each rank, forked from this one."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable


def forked(nodes: int, work: Callable[[int], None]) -> list[int]:
    """Fork a process for each rank, which does its work and ends with status 1 after an exception. Returns their ids.

    This process must have one thread."""
    pids = []
    for rank in range(nodes):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                work(rank)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        pids.append(pid)
    return pids
