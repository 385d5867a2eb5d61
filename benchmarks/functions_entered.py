"""Count the functions of dsgd that a run enters before its first gradient, and their files: what a reader passes.

    python benchmarks/functions_entered.py [--list] [OVERRIDE ...]

Runs `dsgd-run` in the simulator, in a folder that is deleted afterwards; without overrides, gossip on 32 nodes. Counts
distinct functions, lambdas among them; the bodies of classes and modules do not count, nor do comprehensions, which are
functions in some versions of Python only. --list prints the functions by file.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import tempfile
import threading
from types import FrameType

RUN = ["algo=gossip", "nodes=32", "engine=sim", "budget.epochs=1"]
FIRST_GRADIENT = (os.path.join("engines", "sim", "machine.py"), "Machine._gradient")
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


def functions_entered(overrides: list[str]) -> dict[str, set[str]]:
    """Return the functions that a run enters before its first gradient, by file of the package."""
    import dsgd
    from dsgd.cli import commands

    package = os.path.dirname(os.path.abspath(dsgd.__file__)) + os.sep
    entered: dict[str, set[str]] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(package) or code.co_name in COMPREHENSIONS:
            return
        if not code.co_flags & inspect.CO_NEWLOCALS:  # of a class or a module
            return
        path, name = code.co_filename.removeprefix(package), code.co_qualname
        if (path, name) == FIRST_GRADIENT:
            sys.setprofile(None)
            threading.setprofile(None)
        entered.setdefault(path, set()).add(f"{name}:{code.co_firstlineno}")

    sys.argv = ["dsgd-run", *overrides]
    threading.setprofile(note)
    sys.setprofile(note)
    commands.run()
    return entered


def main() -> None:
    """Run, count, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the functions by file")
    parser.add_argument("overrides", nargs="*", default=RUN, metavar="OVERRIDE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        entered = functions_entered([*options.overrides, f"hydra.run.dir={folder}/run"])
    for path in sorted(entered) if options.list else ():
        print(path, *(f"    {name}" for name in sorted(entered[path])), sep="\n")
    print(f"{sum(map(len, entered.values()))} functions in {len(entered)} files before the first gradient", flush=True)


if __name__ == "__main__":
    main()
