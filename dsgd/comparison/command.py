"""Run the command `dsgd-compare`: which contender reaches the target soonest, each with the rate that suits it?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dsgd.cli.arguments import command_parser
from dsgd.cli.folders import check_file
from dsgd.cli.own_script import show_use
from dsgd.cli.plot import CAPTION_HELP, LOG_HELP, log_axes
from dsgd.comparison.comparison_run import run_comparison
from dsgd.comparison.preparation import Prepared, prepare
from dsgd.comparison.rounds import Usage, command_status
from dsgd.data.own_sets import sharing
from dsgd.host.signals import Interruption
from dsgd.report.look import WIDTHS, Look

EXAMPLES = """\
    dsgd-compare algo=sync,gossip,easgd nodes=8,16 data=shapes model=resnet8 target.accuracy=0.9
    dsgd-compare target.accuracy=0.9 compare.contenders='[{algo: gossip, algo.tau: 10}, {algo: sync}]'

Every contender is tuned by validation samples, measured on several seeds, and compared by its time to the target.
Any override of dsgd-run; compare.KEY=VALUE as conf/compare.yaml explains. Repeat the command to resume."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit status, see `command_status`."""

    def work(interruption: Interruption) -> None:
        typed = parser().parse_args(argv)
        if not typed.overrides:
            raise Usage(f"{EXAMPLES}\ndsgd-compare: contenders must be given, got none; --help says more")
        if typed.html is not None:
            check_file(Path(typed.html), "--html")
        if typed.script is not None:
            check_file(Path(typed.script), "--script")
        look = Look(typed.width, log=log_axes(typed.log), captions=not typed.no_caption)
        prepared = prepare(typed.overrides, typed.config_dir)
        with sharing({}):  # the data of a user's function are loaded, and their cost reported, once
            if prepared.options.ladder is not None:
                _climb(typed, prepared, look, interruption)
                return
            with run_comparison(prepared, Path(typed.folder), interruption) as result:
                from dsgd.comparison.comparison_result import report, winner  # draws: not before there is a result

                report(result, look, typed.html)
                show_use(winner(result), typed.script)

    return command_status("dsgd-compare", work)


def _climb(typed: argparse.Namespace, prepared: Prepared, look: Look, interruption: Interruption) -> None:
    """Compare on every rung of a ladder, and report."""
    from dsgd.comparison.ladder import climb

    for option in ("html", "script"):
        if getattr(typed, option) is not None:
            raise ValueError(f"--{option} must not be given with compare.ladder, got {getattr(typed, option)}")
    with climb(typed.overrides, prepared, Path(typed.folder), interruption) as ladder:
        from dsgd.comparison.ladder_report import report_ladder  # draws: not before there is a result

        report_ladder(ladder, look)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    description = "Tune each contender, measure it on several seeds, and tell which reaches the target first."
    command_line = command_parser("dsgd-compare", description, EXAMPLES)
    command_line.add_argument(
        "--folder", default="comparison", metavar="DIR", help="folder of the comparison (default: %(default)s)"
    )
    command_line.add_argument("--config-dir", metavar="DIR", help="your own configuration files")
    command_line.add_argument(
        "--width", choices=tuple(WIDTHS), default="wide", help="width of the figure (default: %(default)s)"
    )
    command_line.add_argument("--log", metavar="AXES", help=LOG_HELP)
    command_line.add_argument("--no-caption", action="store_true", help=CAPTION_HELP)
    command_line.add_argument("--html", metavar="FILE", help="also write a page for a browser")
    command_line.add_argument(
        "--script", metavar="FILE", help="write a training script for torchrun that uses the winner"
    )
    command_line.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    return command_line


if __name__ == "__main__":
    sys.exit(main())
