"""Offer dsgd to Python programs and notebooks: `dsgd.run`, `dsgd.compare`, `dsgd.load_runs`, `dsgd.load_marks`
(docs/reference/python.md)."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from dsgd.record.reader import Run, find_runs
from dsgd.record.safe_text import for_html, from_markdown
from dsgd.report.table import mark_rows, run_rows
from dsgd.runner.resume import quoted
from dsgd.runner.values import ConfigError

# What the child process does: a command, ended with a checkpoint if this process ends before it.
_COMMAND = """
import importlib, signal, sys
from dsgd.cli.commands import MODULES
from dsgd.host.signals import end_with_parent
end_with_parent(int(sys.argv[1]), signal.SIGTERM)
name = sys.argv[2]
sys.argv = [f"dsgd-{name}", *sys.argv[3:]]
sys.exit(importlib.import_module(MODULES[name]).main())
"""
_PROGRESS = re.compile(r"[^ ]+: epoch [0-9.]+|(study .*, )?[0-9]+ of (about )?[0-9]+ runs")  # beginnings of such lines
_RECORD = "record: "  # before the folder, in the output of dsgd-run

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def run(
    overrides: Sequence[str] = (),
    folder: str | os.PathLike[str] | None = None,
    config_dir: str | os.PathLike[str] | None = None,
) -> Run:
    """Run `dsgd-run` with these overrides in a separate process, and return the record.

    Your process keeps its signal handlers, threads, sys.argv and random numbers. The child process finds the same
    modules. Its messages and progress lines go to sys.stderr.

    overrides: `key=value` of one run. folder: folder of the record; None: the default of dsgd-run. config_dir: folder
    of your own configuration files. Ctrl-C ends the run with a checkpoint and raises KeyboardInterrupt. A run that
    diverged, failed or was interrupted is returned too, with its `status`. Raises ConfigError, a ValueError of one
    line, for a wrong configuration, and RuntimeError for a failure that left no record."""
    if isinstance(overrides, str):
        raise ConfigError(f'overrides must be a list of "key=value", got the text {overrides!r}')
    if flags := [text for text in overrides if text.startswith("-")]:
        raise ConfigError(f"overrides must be key=value of one run, got {flags[0]}")
    arguments = [*overrides, *([] if folder is None else [f"hydra.run.dir={quoted(Path(folder))}"])]
    if config_dir is not None:
        arguments += ["--config-dir", str(config_dir)]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        status, last = _call("run", arguments, out.fileno())
        out.seek(0)
        records = [line.removeprefix(_RECORD).rstrip("\n") for line in out if line.startswith(_RECORD)]
    if status == 2:
        raise ConfigError(last)
    run_folder = Path(folder) if folder is not None else Path(records[-1]) if records else None
    if run_folder is None or not run_folder.is_dir():
        raise RuntimeError(last or f"dsgd-run ended with status {status}")
    (record,) = find_runs([run_folder])
    return record


@dataclass(frozen=True, repr=False)
class Compared:
    """The result of a comparison. verdict: two sentences. table: a row per contender, as Markdown. runs: the measured
    runs. folder: folder of all files and records, tuning runs included."""

    folder: Path
    verdict: str
    table: str
    runs: list[Run]

    def __repr__(self) -> str:
        """Return verdict and table, as a Python prompt shows them."""
        return f"{self.verdict}\n\n{self.table}"

    def _repr_html_(self) -> str:
        """Return verdict and table, as a notebook shows them."""
        table, _, notes = self.table.partition("\n\n")
        head, _, *lines = (line.removeprefix("| ").removesuffix(" |").split(" | ") for line in table.splitlines())
        rows = [_html_row("th", head), *(_html_row("td", line) for line in lines)]
        above, below = (
            "".join(f"<p>{for_html(line)}</p>" for line in text.splitlines())
            for text in (self.verdict, from_markdown(notes))
        )
        return f"{above}<table>{''.join(rows)}</table>{below}"


def _html_row(kind: str, cells: Sequence[str]) -> str:
    """Return a row of a table. kind: th | td. cells: Markdown."""
    return f"<tr>{''.join(f'<{kind}>{for_html(from_markdown(cell))}</{kind}>' for cell in cells)}</tr>"


def compare(
    overrides: Sequence[str] = (),
    folder: str | os.PathLike[str] = "comparison",
    config_dir: str | os.PathLike[str] | None = None,
) -> Compared:
    """Run `dsgd-compare` with these overrides in a separate process, and return its result (docs/howto/compare.md).

    A second call makes the missing runs only. Arguments and errors are as in `run`. Also raises RuntimeError if runs
    have failed, or still wait or run in SLURM."""
    if isinstance(overrides, str):
        raise ConfigError(f'overrides must be a list of "key=value", got the text {overrides!r}')
    arguments = ["--folder", str(folder), *overrides]
    if config_dir is not None:
        arguments += ["--config-dir", str(config_dir)]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        status, last = _call("compare", arguments, out.fileno())
    message = last.removeprefix("dsgd-compare: ")
    if status:
        raise (
            ConfigError(message) if status == 2 else RuntimeError(message or f"dsgd-compare ended with status {status}")
        )
    comparison_folder = Path(folder)
    with (comparison_folder / "contest.csv").open(newline="", encoding="utf-8") as file:
        folders = [row["folder"] for row in csv.DictReader(file)]
    verdict, table = (
        (comparison_folder / name).read_text(encoding="utf-8").strip() for name in ("verdict.txt", "contest.md")
    )
    return Compared(comparison_folder, verdict, table, find_runs(folders))


def load_runs(paths: Paths) -> Any:
    """Return a pandas.DataFrame with a row for each run below one or several folders.

    docs/reference/python.md lists the columns. Raises ValueError if there is no run or a record cannot be read, and
    ModuleNotFoundError without pandas."""
    pandas = _pandas()
    return pandas.DataFrame(run_rows(find_runs(_several(paths))))


def load_marks(paths: Paths) -> Any:
    """Return a pandas.DataFrame with a row for each evaluation of each run; the first column is the run's folder.

    Raises the errors of `load_runs`."""
    pandas = _pandas()
    return pandas.DataFrame(mark_rows(find_runs(_several(paths))))


def _call(name: str, arguments: Sequence[str], out: int) -> tuple[int, str]:
    """Run a command, `dsgd-NAME`, to its end. out: file descriptor of its standard output. Returns its exit status, and
    the last line that it has written on stderr."""
    command = [sys.executable, "-c", _COMMAND, str(os.getpid()), name, *arguments]
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    last = bar = ""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8", "MPLBACKEND": "Agg"},
        start_new_session=True,  # a terminal's Ctrl-C would arrive twice, which means: end without a checkpoint
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                last = line.strip() or last
                bar = _shown(line, bar)
        except BaseException:
            process.send_signal(signal.SIGINT)
            process.wait()  # which the end of the block does not do after Ctrl-C
            raise
    print("\n" * bool(bar), end="", file=sys.stderr, flush=True)
    return process.returncode, last


def _shown(line: str, bar: str) -> str:
    """Print a line of a command. In a notebook a progress line replaces the one before, `bar`. Returns the line that
    the next one may replace."""
    text = line.rstrip("\n")
    if "ipykernel" in sys.modules and _PROGRESS.match(text):
        print("\r" + text.ljust(len(bar)), end="", file=sys.stderr, flush=True)
        return text
    print("\n" * bool(bar) + line, end="", file=sys.stderr, flush=True)
    return ""


def _several(paths: Paths) -> list[str | os.PathLike[str]]:
    return [paths] if isinstance(paths, str | os.PathLike) else list(paths)


def _pandas() -> Any:
    try:
        return import_module("pandas")
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise ModuleNotFoundError("pandas must be installed for data frames: pip install pandas") from None
