"""Types dsgd-run several times in one task of srun, without waiting for torch to be imported each time.

    srun python -m tests.support.several_runs 'nodes=4 algo=sync' 'nodes=4 algo=gossip'

What each process does that is forked here is what a freshly typed `dsgd-run` does. Ends with the largest status.
"""

from __future__ import annotations

import os
import shlex
import sys


def main() -> int:
    import torch

    import dsgd.engines.dist.distributed  # noqa: F401
    from dsgd.cli.run import main as run

    torch.set_num_threads(1)  # no pool of threads may exist when a process forks
    worst = 0
    for line in sys.argv[1:]:
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                status = run(shlex.split(line))
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        worst = max(worst, abs(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    return worst


if __name__ == "__main__":
    sys.exit(main())
