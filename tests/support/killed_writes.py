"""Runs that are killed at each of their writes in turn, and go on.

    python -m tests.support.killed_writes FOLDER STEP ARGUMENT... [--extend OVERRIDE...]

Types `dsgd-run ARGUMENT... resume=auto hydra.run.dir=FOLDER/N/run` for N = 2, 2 + STEP, ...; the process that is about
to put a file in its place, to remove one, or has just done so, kills itself the N-th time. What is left is copied to
FOLDER/N/killed, and the same line typed again; if there had been a checkpoint, there is a file FOLDER/N/had. Ends with
the first N at which nothing is killed any more. Prints a line of JSON for each N: the exit statuses, and what the
second command printed.

With --extend there is such a run already, in which nothing was killed, and the line is
`dsgd-run resume=FOLDER/N/run OVERRIDE...`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dsgd.record.checkpoint_file import NAME
from dsgd.record.lock import LOCK
from dsgd.record.safe_files import ROOM

EXTEND = "--extend"
LIMIT = 100  # writes of a run, at most
ENDED = "ended"  # a file of this name says that a process has killed itself


def kill_at(number: int, folder: Path) -> None:
    """Have this process, or one that it forks, kill itself at a write below a folder: before the even ones, after the
    odd ones. Each process counts its own; that lock and room go is not counted: nobody reads them."""
    written, had, unlink = 0, False, os.unlink

    def end() -> None:
        (folder.parent / ENDED).touch()
        if had:
            (folder.parent / "had").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def write(path: Any, *rest: Any, **options: Any) -> Any:
            nonlocal written, had
            name = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
            if not name.startswith(str(folder)) or (function is unlink and Path(name).name in (LOCK, ROOM)):
                return function(path, *rest, **options)
            written += 1
            if 2 * written == number:
                end()
            try:
                return function(path, *rest, **options)
            finally:  # it may have found nothing to remove
                had = had or (folder / NAME).exists()
                if 2 * written + 1 == number:
                    end()

        return write

    os.replace, os.unlink, os.truncate = wrapped(os.replace), wrapped(os.unlink), wrapped(os.truncate)


def run(arguments: Sequence[str], number: int, folder: Path, said: Path) -> int:
    """Type dsgd-run in a process of its own, for a run in `folder`. number: of the write at which it is killed; 0: it
    is not."""
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(out, 1)
            os.dup2(out, 2)
            from dsgd.cli.run import main

            if number:
                kill_at(number, folder)
            sys.argv = ["dsgd-run", *arguments]
            status = main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    import torch

    import dsgd.engines.dist.distributed
    import dsgd.engines.sim.simulated  # noqa: F401

    torch.set_num_threads(1)  # no pool of threads may exist when a process forks
    top, step, arguments = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    end = arguments.index(EXTEND) if EXTEND in arguments else len(arguments)
    beginning, overrides = arguments[:end], arguments[end + 1 :]
    if overrides:
        said = top / "said"
        assert run([*beginning, f"hydra.run.dir={top / 'first'}"], 0, top, said) == 0, said.read_text()
    for number in range(2, LIMIT, step):
        folder = top / str(number)
        folder.mkdir()
        said = folder / "said"
        arguments = [*beginning, "resume=auto", f"hydra.run.dir={folder / 'run'}"]
        if overrides:
            shutil.copytree(top / "first", folder / "run")
            arguments = [f"resume={folder / 'run'}", *overrides]
        first = run(arguments, number, folder / "run", said)
        if not (folder / ENDED).exists():
            assert first == 0, said.read_text()
            return
        if (folder / "run").exists():
            shutil.copytree(folder / "run", folder / "killed")
        second = run(arguments, 0, folder / "run", said)
        print(json.dumps({"number": number, "first": first, "second": second, "said": said.read_text()}), flush=True)
    raise AssertionError("it writes without end")


if __name__ == "__main__":
    main()
