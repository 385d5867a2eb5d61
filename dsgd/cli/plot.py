"""Run the command `dsgd-plot RUNS... --out DIR`: figures and the summary table, from run records alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dsgd.cli.arguments import command_parser, exit_status
from dsgd.cli.folders import check_file, check_writable
from dsgd.host.terminal import table_console
from dsgd.record.safe_text import for_terminal
from dsgd.report.look import AXES, FORMATS, WIDTHS, Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dsgd.record.reader import Run

PIPE_WIDTH = 1000  # characters of a line: a file or a pipe has no width to keep to
X_AXES = ("time", "epochs", "bytes", "samples")
CAPTION_HELP = "write each figure's caption beside it, as FIGURE.txt, instead of below it"
LOG_HELP = "logarithmic axes: x, y, x,y or none (default: those whose values span a decade, and those of errors)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status: 0, 2 after one line on stderr, or 130 on Ctrl-C."""
    return exit_status("dsgd-plot", partial(run, sys.argv[1:] if argv is None else argv))


def run(argv: Sequence[str]) -> int:
    """Run a command line; returns 0. Raises ValueError, one line, if a figure cannot be drawn."""
    options = _parser().parse_args(argv)
    formats = _choices("--format", options.format, FORMATS)
    (width,) = _choices("--width", options.width, tuple(WIDTHS), several=False)
    look = Look(width, formats, log_axes(options.log), not options.no_caption)
    if options.html:
        for name in ("y", "x", "only", "log", "no_caption"):
            if getattr(options, name):
                option = name.replace("_", "-")
                raise ValueError(f"--html must not be given with --{option}: the page has its own curves")
        check_file(Path(options.html), "--html")
        return _write_page(options.runs, Path(options.html))
    check_writable(Path(options.out), "--out")
    if options.y is not None:
        return _plot_field(options, look)
    for name in ("lines", "panels", "best_over", "base"):
        if getattr(options, name):
            raise ValueError(f"--{name.replace('_', '-')} needs --y, the field to draw")
    x_axes = _choices("--x", options.x or "time,epochs,bytes", X_AXES)
    only = _choices("--only", options.only, _names(x_axes)) if options.only else []
    return _plot(options.runs, Path(options.out), look, x_axes, only)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("dsgd-plot", "Draw figures and a summary table from run records alone.")
    parser.add_argument("runs", nargs="+", metavar="RUNS", help="run folders, or folders with runs below (multirun)")
    parser.add_argument("--out", default="figures", metavar="DIR", help="where to write (default: %(default)s)")
    parser.add_argument(
        "--width",
        default="wide",
        help="at print size: single (a column of a paper), double (its page); wide: for screens (default: wide)",
    )
    parser.add_argument(
        "--format", default="png", help=f"one of {', '.join(FORMATS)}; several with commas (default: png)"
    )
    parser.add_argument(
        "--x",
        metavar="AXES",
        help=f"horizontal axis: one of {', '.join(X_AXES)}; several with commas (default: the first three); "
        "with --y: one of them, or a key",
    )
    parser.add_argument("--log", metavar="AXES", help=LOG_HELP)
    parser.add_argument("--no-caption", action="store_true", help=CAPTION_HELP)
    parser.add_argument(
        "--only", metavar="NAMES", help="draw these figures only: overview, idle, ...; several with commas"
    )
    parser.add_argument(
        "--html", metavar="FILE", help="write one page for a browser instead: table, curves, differences"
    )
    compared = parser.add_argument_group("one figure of your own, with its table (docs/howto/figures.md)")
    compared.add_argument("--y", metavar="FIELD", help="a field of the summary, or derived: test_error, step_s, ...")
    compared.add_argument("--lines", metavar="KEYS", help="a line for each value (default: all other keys that differ)")
    compared.add_argument("--panels", metavar="KEY", help="a panel for each value")
    compared.add_argument("--best-over", metavar="KEY", help="show only the best value of KEY, by FIELD")
    compared.add_argument("--base", metavar="KEY=VALUE,...", help="draw speed-ups over this configuration")
    return parser


def log_axes(text: str | None) -> list[str] | None:
    """Return the axes that `--log` makes logarithmic; None: chosen by the values. Raises ValueError."""
    if text is None:
        return None
    axes = [] if text == "none" else text.split(",")
    if not set(axes) <= set(AXES):
        raise ValueError(f"--log must be x, y, x,y or none, got {text!r}")
    return axes


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


def _plot_field(options: argparse.Namespace, look: Look) -> int:
    """Draw the figure that `--y` asks for, and write its table."""
    if options.x is None:
        raise ValueError(f"--y needs --x: {', '.join(X_AXES)} or a key")
    if options.only:
        raise ValueError("--only must not be given with --y, which draws one figure")
    runs, out = _read(options.runs), Path(options.out)

    from dsgd.report.field_plot import field_figure, field_plot, field_table
    from dsgd.report.style import write_figure

    lines = options.lines.split(",") if options.lines else []
    plot = field_plot(
        runs, options.y, options.x, lines, options.panels or "", options.best_over or "", options.base or ""
    )
    name = f"{'speed_up_' * bool(options.base)}{options.y}_by_{options.x.removesuffix('.name').replace('.', '_')}"
    table = field_table(plot)

    def figure() -> Figure:
        drawn = field_figure(plot)
        out.mkdir(parents=True, exist_ok=True)  # not without a figure
        return drawn

    try:
        written = write_figure(figure, out / name, look)
        if options.x not in X_AXES:
            written += table.write(out / name)
    except OSError as error:
        raise ValueError(f"--out must be a folder that can be written, got {out} ({error.strerror})") from error
    if options.x not in X_AXES:
        table.print(table_console(PIPE_WIDTH))
        print()
    for path in written:
        print(for_terminal(str(path)))
    return 0


def _read(paths: Sequence[str]) -> list[Run]:
    from dsgd.record.reader import find_runs

    try:
        return find_runs(paths)
    except OSError as error:
        raise ValueError(f"RUNS must be readable: {error}") from error


def _write_page(paths: Sequence[str], file: Path) -> int:
    runs = _read(paths)

    from dsgd.record.safe_files import write_atomically
    from dsgd.report.page import page_text

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, page_text(runs).encode())
    except OSError as error:
        raise ValueError(f"--html must be a file that can be written, got {file} ({error.strerror})") from error
    print(for_terminal(str(file)))
    return 0


def _plot(paths: Sequence[str], out: Path, look: Look, x_axes: Sequence[str], only: Sequence[str]) -> int:
    from dsgd.report.prediction import pairs, pairs_table
    from dsgd.report.table import summary_sentences, summary_table

    runs = _read(paths)

    from dsgd.report.figures import draw  # matplotlib takes most of a second: not before the records are known good

    tables = {"summary": summary_table(runs)}
    if paired := pairs(runs):
        tables["predicted"] = pairs_table(paired, runs)
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = [path for name, table in tables.items() for path in table.write(out / name)]
        figures, missing = draw(runs, out, look, x_axes, only)
    except OSError as error:
        raise ValueError(f"--out must be a folder that can be written, got {out} ({error.strerror})") from error

    known: list[str] = []
    for table in tables.values():
        print("\n" * bool(known), end="")
        table.print(table_console(PIPE_WIDTH), known)
        known += table.caption.split("\n")
    for sentence in summary_sentences(runs):
        print(f"- {for_terminal(sentence)}")
    print()
    for path in [*figures, *written]:
        print(for_terminal(str(path)))
    for name, reason in missing.items():
        print(f"not drawn: {name} ({for_terminal(reason)})")
    running = sum(run.status == "running" for run in runs)
    if running:
        print(f"{running} of {len(runs)} runs have no summary (running or killed): shown up to their last evaluation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
