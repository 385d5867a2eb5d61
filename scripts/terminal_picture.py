"""Draw what a command prints on a terminal, as an SVG picture. `make figures` draws the README's.

python scripts/terminal_picture.py results/compare/terminal.svg -- dsgd-compare --folder outputs/compare ...
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import subprocess
from pathlib import Path

from rich.console import Console
from rich.text import Text

LAST = "\ntimes: median over seeds of the ratio"  # the picture ends before this line, the first note of the verdict


def printed(command: list[str], columns: int) -> str:
    """Return the standard output of a command that believes it writes to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "LINES": "60", "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        output = bytearray()
        while True:
            try:
                output += os.read(ours, 65536)
            except OSError:  # on Linux, how a terminal says that its last writer has closed it
                break
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"{command[0]} ended with status {process.returncode}")
    return output.decode().replace("\r\n", "\n")


def picture(command: str, output: str, columns: int) -> str:
    """Return the SVG of a command line and its output."""
    console = Console(record=True, width=columns, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text(f"$ {command}\n", style="bold"))
    console.print(Text.from_ansi(output))
    svg = console.export_svg(title="dsgd", unique_id="dsgd")
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # fonts of a server on the web


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("svg", type=Path)
    parser.add_argument("--columns", type=int, default=112)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    output = printed(options.command, options.columns).partition(LAST)[0].rstrip()
    shown = " ".join([Path(options.command[0]).name, *options.command[1:]])
    options.svg.write_text(picture(re.sub(r" --folder \S+", "", shown), output, options.columns))


if __name__ == "__main__":
    main()
