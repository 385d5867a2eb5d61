"""Certify other people's hooks, optimizers and wrappers, and write the table of their certificates.

    pip install accelerate torchft                                   # into an environment of their own, with dsgd
    git clone https://github.com/exo-explore/gym                     # and https://github.com/MattBeton/diloco-sim
    python benchmarks/certificates.py --checkouts . --out results/certificates
    python benchmarks/certificates.py TorchAllReduce PowerSGD        # some, which are printed only

Each row is what `dsgd-certify` says of a class in `benchmarks/counterparts/certified.py`. A program that is not
installed is named in the table, and not certified.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests.support
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported

from dsgd.certificate.certificate import certify
from dsgd.certificate.interfaces import foreign_class

# where a repository has what is imported
REPOSITORIES = {
    "gym": "https://github.com/exo-explore/gym",
    "diloco-sim": "https://github.com/MattBeton/diloco-sim",
}


@dataclass(frozen=True)
class CertifiedCase:
    """A class to certify. shown: name in the table. source: package or repository."""

    name: str
    shown: str
    source: str


CASES = (
    CertifiedCase("TorchAllReduce", "torch, `allreduce_hook`", "torch"),
    CertifiedCase("TorchHalf", "torch, `bf16_compress_hook`, which rounds", "torch"),
    CertifiedCase("PowerSGD", "torch, `powerSGD_hook`", "torch"),
    CertifiedCase("PeriodicAverager", "torch, `PeriodicModelAverager`, told to wait for a whole round", "torch"),
    CertifiedCase("PostLocalSGD", "torch, `PostLocalSGDOptimizer`, as documented", "torch"),
    CertifiedCase("PostLocalSGDOwnBuffers", "the same, `broadcast_buffers=False`", "torch"),
    CertifiedCase("PostLocalSGDWholeRounds", "the same, also told to wait for a whole round", "torch"),
    CertifiedCase("AccelerateLocalSGD", "accelerate, `LocalSGD`, as documented", "accelerate"),
    CertifiedCase("TorchftLocalSGD", "torchft, `LocalSGD`", "torchft"),
    CertifiedCase("TorchftDiLoCo", "torchft, `DiLoCo`", "torchft"),
    CertifiedCase("GymDiLoCo", "EXO Gym, `DiLoCoStrategy`, as it is", "gym"),
    CertifiedCase("GymDiLoCoAdapted", "the same, counted from one, with memory of its own in rank 0", "gym"),
    CertifiedCase("DilocoSim", "diloco-sim, `DilocoSimulator._outer_step`", "diloco-sim"),
)
HEAD = (
    "| implementation | version | interface | compared with | verdict | first difference |\n|---|---|---|---|---|---|"
)


def installed(source: str, checkouts: Path) -> str:
    """Return the version of a package or the commit of a repository, which can then be imported; "" without it."""
    if source not in REPOSITORIES:
        return version(source) if find_spec(source) else ""
    folder = (checkouts / source).resolve()
    if not folder.is_dir():
        return ""
    sys.path.insert(0, str(folder))
    line = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()


def row(case: CertifiedCase, checkouts: Path) -> str:
    """Return the row of a case. What the class prints goes to standard error."""
    found = installed(case.source, checkouts)
    foreign = foreign_class(f"counterparts.certified:{case.name}")
    method = " ".join([f"`{foreign.algo}`", *(f"`{name}={value}`" for name, value in foreign.options.items())])
    if not found:
        how = f"git clone {url}" if (url := REPOSITORIES.get(case.source)) else f"pip install {case.source}"
        return f"| {case.shown} | | {foreign.interface} | {method} | not installed: `{how}` | |"
    print(case.name, file=sys.stderr)
    certificate = certify(foreign, lambda line: print(line, file=sys.stderr, flush=True))
    first = next((str(line) for line in certificate.lines if line.difference), "")
    return f"| {case.shown} | {found} | {foreign.interface} | {method} | {certificate.verdict} | {first} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkouts", type=Path, default=Path(), help="folder with the repositories that were cloned")
    parser.add_argument("--out", type=Path, help="folder for README.md")
    parser.add_argument("cases", nargs="*", help="names of classes; all where none is given")
    options = parser.parse_args()
    cases = [case for case in CASES if not options.cases or case.name in options.cases]
    table = "\n".join([HEAD, *(row(case, options.checkouts) for case in cases)])
    print(table)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        page = (
            "# Certificates of other implementations\n\n`python benchmarks/certificates.py` makes this table "
            "([how to read it](../../docs/howto/certify.md)). Each row is what\n`dsgd-certify` says of a class in "
            "[benchmarks/counterparts/certified.py](../../benchmarks/counterparts/certified.py).\n\n"
        )
        (options.out / "README.md").write_text(f"{page}{table}\n")


if __name__ == "__main__":
    main()
