"""dsgd-certify: trains small problems with a class of yours, in real processes, and says whether it does what dsgd's
text of the same method does, or where it differs first and which usual defect explains that.

    PYTHONPATH=. dsgd-certify mine:Averaging

The class has one of three interfaces: a communication hook of DistributedDataParallel, an outer optimizer, or a wrapper
of model and optimizer (docs/howto/certify.md). Exit status: 0 certified, 1 differs, 2 bad input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from dsgd.cli.arguments import command_parser, exit_status
from dsgd.host.stop import EXIT_FAILED


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0 if the class is certified, 1 if it differs, 2 for bad input."""
    return exit_status("dsgd-certify", lambda: run(sys.argv[1:] if argv is None else list(argv)))


def run(argv: Sequence[str]) -> int:
    """Certify the class of a command line. Returns 0 or 1. Raises ValueError for bad input."""
    parser = command_parser("dsgd-certify", __doc__)
    parser.add_argument("path", metavar="PACKAGE.MODULE:CLASS", help="the class, importable by Python")
    path = parser.parse_args(argv).path
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported; on a warning of every process
    from dsgd.certificate.certificate import certify
    from dsgd.certificate.interfaces import foreign_class

    foreign = foreign_class(path)
    options = "".join(f" {name}={value}" for name, value in foreign.options.items())
    counterpart = f"compared with algo={foreign.algo}{options}" if foreign.algo else f"exact reductions alone{options}"
    print(f"{path}, {foreign.interface}, {counterpart}", flush=True)
    certificate = certify(foreign, lambda line: print(line, flush=True))
    print(certificate.verdict)
    return 0 if certificate.is_certified else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
