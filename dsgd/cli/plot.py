"""Run the command `dsgd-plot RUNS... --out DIR`: figures and the summary table, from run records alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dsgd.cli.arguments import Parser

FORMATS = ("png", "svg", "pdf")
WIDTHS = ("single", "double", "wide")
X_AXES = ("time", "epochs", "bytes", "samples")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status: 0, or 2 after one line on stderr."""
    try:
        options = _parser().parse_args(argv)
        formats = _choices("--format", options.format, FORMATS)
        x_axes = _choices("--x", options.x, X_AXES)
        only = _choices("--only", options.only, _names(x_axes)) if options.only else []
        (width,) = _choices("--width", options.width, WIDTHS, several=False)
        return _plot(options.runs, Path(options.out), formats, x_axes, only, width)
    except ValueError as error:
        print(f"dsgd-plot: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="dsgd-plot", description="Draw figures and a summary table from run records alone.")
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or folders with runs below (multirun)")
    parser.add_argument("--out", default="figures", metavar="DIR", help="where to write (default: %(default)s)")
    parser.add_argument(
        "--width",
        default="wide",
        help="at print size: single (a column of a paper), double (its page); wide: for screens (default: wide)",
    )
    parser.add_argument("--format", default="png", help=f"of {', '.join(FORMATS)}; several with commas (default: png)")
    parser.add_argument(
        "--x",
        default="time,epochs,bytes",
        metavar="AXES",
        help=f"loss and accuracy against: of {', '.join(X_AXES)}; several with commas (default: %(default)s)",
    )
    parser.add_argument(
        "--only", metavar="NAMES", help="draw these figures only: overview, idle, ...; several with commas"
    )
    return parser


def _names(x_axes: Sequence[str]) -> list[str]:
    from dsgd.report.figures import figures

    return list(figures(x_axes))


def _choices(option: str, text: str, known: Sequence[str], several: bool = True) -> list[str]:
    chosen = list(dict.fromkeys(text.split(","))) if several else [text]
    for name in chosen:
        if name not in known:
            separated = ", separated by commas" * several
            raise ValueError(f"{option} must be of {', '.join(known)}{separated}, got {name!r}")
    return chosen


def _plot(
    paths: Sequence[str], out: Path, formats: Sequence[str], x_axes: Sequence[str], only: Sequence[str], width: str
) -> int:
    from rich.console import Console

    from dsgd.record.reader import find_runs
    from dsgd.report.prediction import pairs, pairs_table
    from dsgd.report.table import summary_table
    from dsgd.report.verdict import verdict

    try:
        runs = find_runs(paths)
    except OSError as error:
        raise ValueError(f"RUNS must be readable: {error}") from error

    from dsgd.report.figures import draw  # matplotlib takes most of a second: not before the records are known good

    tables = {"summary": summary_table(runs)}
    if paired := pairs(runs):
        tables["predicted"] = pairs_table(paired)
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = [path for name, table in tables.items() for path in table.write(out / name)]
        figures, missing = draw(runs, out, formats, x_axes, only, width)
    except OSError as error:
        raise ValueError(f"--out must be a folder that can be written, got {out} ({error.strerror})") from error

    wide = None if sys.stdout.isatty() else 1000  # a file or a pipe has no width to keep to
    for i, table in enumerate(tables.values()):
        print("\n" * (i > 0), end="")
        table.print(Console(width=wide))
    for sentence in verdict(runs):
        print(f"- {sentence}")
    print()
    for path in [*figures, *written]:
        print(path)
    for name, reason in missing.items():
        print(f"not drawn: {name} ({reason})")
    running = sum(run.status == "running" for run in runs)
    if running:
        print(f"{running} of {len(runs)} runs have no summary (going on, or killed): shown as far as they got")
    return 0


if __name__ == "__main__":
    sys.exit(main())
