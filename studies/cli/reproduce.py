"""Run the command `dsgd-reproduce`: what the papers say, what came out here, and whether it agrees."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from dsgd.cli.arguments import Parser, version_line
from dsgd.cli.folders import check_writable, owned
from dsgd.comparison.rounds import Unfinished, Usage, ended
from dsgd.host.signals import Interruption
from studies.cli.forecast import forecast
from studies.cli.paper_studies import Venue, run_pipelines, run_study
from studies.cli.yardstick import RESULTS, YARDSTICK, write_yardstick
from studies.evidence.contrast import Pipelines
from studies.evidence.trial import TRIALS
from studies.papers import papers
from studies.reproduction import archive
from studies.reproduction.overview import OVERVIEW, write_overview
from studies.reproduction.pages import Results, page_of, verdict_lines, write_paper
from studies.reproduction.paper import Paper, Study

Wanted = Sequence[tuple[Paper, Sequence[Study]]]

ALL = "all"  # papers
WITHDRAWN = {  # flags of the last release: what to use instead
    "--scale": "claims have one scale; dsgd-compare experiment=jin2016_resnet18_imagenet repeats a published setup",
    "--anew": "remove the lines of a study from results/papers, and it is made again",
}
EXAMPLES = """\
    dsgd-reproduce all                          every paper: make the missing runs, then write the pages
    dsgd-reproduce jin2016 --claim J1           one claim
    dsgd-reproduce --redraw                     pages and figures from the logged runs, no training
    dsgd-reproduce all --forecast               print how many core-hours the missing runs would take
    dsgd-reproduce --claim L1 --quick           one replicate: in minutes, what would take hours; decides nothing
    dsgd-reproduce yardstick                    compare the simulator's times with published measurements
    dsgd-reproduce lian2017 --on slurm slurm.partition=cpu

Repeat the command to resume."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit status, see `ended`."""

    def work(interruption: Interruption) -> None:
        typed = parser().parse_args(argv)
        names = [word for word in typed.targets if "=" not in word]
        slurm = [word for word in typed.targets if "=" in word]
        _check(typed, slurm)
        if YARDSTICK in names:
            _check_alone(typed, names)
            write_yardstick(Path(typed.results or RESULTS), typed.redraw, interruption)
            return
        if not (names or typed.claim or typed.redraw):
            keys = ", ".join([ALL, YARDSTICK, *(paper.key for paper in papers())])
            raise Usage(f"{EXAMPLES}\ndsgd-reproduce: PAPER must be given, one of {keys}, got none; --help says more")
        chosen, claims = _chosen(papers(), names, tuple(typed.claim))
        wanted = _wanted(chosen, claims, tuple(typed.study))
        results = Path(typed.results or ("outputs/quick" if typed.quick else "results/papers"))
        if typed.forecast:
            _forecast(chosen, claims, Pipelines.read(results, typed.quick))
            return
        logged = [results / TRIALS, *(archive.path_of(paper.key, results) for paper in papers())]
        if typed.redraw and not any(path.exists() for path in logged):
            raise ValueError(f"--redraw needs logged runs in {results}, got none")
        check_writable(results, "--results")
        if not typed.redraw:
            check_writable(Path(typed.folder), "--folder")
        with owned(results, "--results"):
            for paper in papers():  # a broken archive is found before anything runs
                archive.read(archive.path_of(paper.key, results))
            if not typed.redraw:
                venue = Venue(Path(typed.folder), typed.jobs, typed.on, tuple(slurm))
                if not typed.study:
                    needs = [need for paper in chosen for need in paper.needs_of(claims)]
                    run_pipelines(needs, results, venue, interruption, typed.quick)
                _run(wanted, venue, results, interruption)
            _draw(chosen, claims, results, typed.quick)

    return ended("dsgd-reproduce", work)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command_line = Parser(
        prog="dsgd-reproduce",
        description="Repeat the papers' experiments, and compare the results with the papers' claims.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command_line.add_argument("--version", action="version", version=version_line())
    command_line.add_argument(
        "--claim", action="append", default=[], metavar="ID", help="only the runs of this claim, like J1"
    )
    command_line.add_argument("--study", action="append", default=[], metavar="NAME", help="only these runs, like idle")
    command_line.add_argument(
        "--redraw", action="store_true", help="run nothing: pages and figures from the logged runs"
    )
    command_line.add_argument(
        "--forecast", action="store_true", help="run nothing: core-hours of the runs that are missing"
    )
    command_line.add_argument(
        "--quick", action="store_true", help="one replicate of each pipeline: all runs work, nothing is decided"
    )
    command_line.add_argument(
        "--on", choices=("here", "slurm"), default="here", help="where to run (default: %(default)s)"
    )
    command_line.add_argument("--jobs", type=int, metavar="N", help="runs at a time here (default: one for each core)")
    command_line.add_argument(
        "--folder", default="outputs/papers", metavar="DIR", help="folder of the records (default: %(default)s)"
    )
    command_line.add_argument(
        "--results",
        metavar="DIR",
        help="folder of logged runs and pages (default: results/papers, or outputs/quick)",
    )
    for flag in WITHDRAWN:
        command_line.add_argument(flag, nargs="?", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    command_line.add_argument("targets", nargs="*", metavar="PAPER | slurm.KEY=VALUE")
    return command_line


def _chosen(
    known: Sequence[Paper], names: Sequence[str], claims: tuple[str, ...]
) -> tuple[list[Paper], tuple[str, ...]]:
    """Return the papers and the claims that a command line asks for. Raises ValueError for others than there are."""
    keys = [paper.key for paper in known]
    for name in names:
        if name not in (ALL, *keys):
            raise ValueError(f"PAPER must be one of {', '.join([ALL, YARDSTICK, *keys])}, got {name}")
    chosen = [paper for paper in known if not names or ALL in names or paper.key in names]
    ids = [claim.id for paper in chosen for claim in paper.claims]
    for claim in claims:
        if claim not in ids:
            raise ValueError(f"--claim must be one of {', '.join(ids)}, got {claim}")
    if claims:
        chosen = [paper for paper in chosen if any(claim.id in claims for claim in paper.claims)]
    return chosen, claims


def _wanted(chosen: Sequence[Paper], claims: tuple[str, ...], studies: tuple[str, ...]) -> Wanted:
    """Return the studies that a command line asks for, of each paper. Raises ValueError for others than there are."""
    wanted = [(paper, paper.studies_of(claims)) for paper in chosen]
    names = [study.name for _, of_paper in wanted for study in of_paper]
    for name in studies:
        if name not in names:
            raise ValueError(f"--study must be one of {', '.join(names)}, got {name}")
    return [
        (paper, [study for study in of_paper if not studies or study.name in studies]) for paper, of_paper in wanted
    ]


def _check(typed: argparse.Namespace, slurm: Iterable[str]) -> None:
    for flag, rule in WITHDRAWN.items():
        if hasattr(typed, flag.lstrip("-")):
            raise ValueError(f"{flag} is withdrawn: {rule}")
    if typed.jobs is not None and typed.jobs < 1:
        raise ValueError(f"--jobs must be >= 1, got {typed.jobs}")
    if typed.forecast and typed.redraw:
        raise ValueError("--forecast is of runs, --redraw makes none: give one of them")
    for word in slurm:
        if not word.startswith("slurm."):
            raise ValueError(f"words must be papers or slurm.KEY=VALUE, got {word}")
        if typed.on != "slurm":
            raise ValueError(f"{word.partition('=')[0]} needs --on slurm, got --on {typed.on}")


def _check_alone(typed: argparse.Namespace, names: Sequence[str]) -> None:
    """Raise ValueError if the yardstick is asked for with what belongs to papers."""
    given = {"another PAPER": len(names) > 1, "--claim": typed.claim, "--on": typed.on != "here"}
    for what in (name for name, value in given.items() if value):
        raise ValueError(f"{YARDSTICK} must be without {what}, which belongs to papers, got {' '.join(names)} with it")


def _run(wanted: Wanted, venue: Venue, results: Path, interruption: Interruption) -> None:
    """Make the runs of studies that are missing, and add them to the archives, a study at a time.

    Raises Unfinished when all that can be run has been, if runs failed or are with SLURM."""
    unfinished = []
    missing = _missing(wanted, results)
    for paper, studies in wanted:
        path = archive.path_of(paper.key, results)
        rows = archive.read(path)
        for study in studies:
            if (paper.key, study.name) not in missing:
                continue
            print(f"{paper.key}: {study.command}", file=sys.stderr, flush=True)
            if study.by is not None:
                print(f"{paper.key}: {study.name} is left to you, see docs/explanation/papers.md", file=sys.stderr)
                continue
            here = Venue(venue.folder / paper.key, venue.at_once, venue.on, venue.slurm)
            part = f"study {1 + missing.index((paper.key, study.name))} of {len(missing)}" if len(missing) > 1 else ""
            try:
                rows[study.name] = run_study(study, here, interruption, part)
            except Unfinished as line:
                unfinished.append(f"{paper.key} {study.name}: {line}")
                continue
            rows = {entry.name: rows[entry.name] for entry in paper.studies if entry.name in rows}
            archive.write(path, rows)
    if unfinished:
        raise Unfinished("; ".join(unfinished))


def _forecast(chosen: Sequence[Paper], claims: tuple[str, ...], pipelines: Pipelines) -> None:
    """Print what the pipelines that each claim misses cost, and all of them. Writes nothing."""
    for paper in chosen:
        for claim in paper.claims:
            if claim.needs and (not claims or claim.id in claims):
                print(f"{claim.id}: {forecast(claim.needs, pipelines)}", flush=True)
    print(f"all: {forecast([need for paper in chosen for need in paper.needs_of(claims)], pipelines)}")


def _missing(wanted: Wanted, results: Path) -> list[tuple[str, str]]:
    """Return the studies whose runs are not in the archives, as keys of papers and names."""
    missing = []
    for paper, studies in wanted:
        rows = archive.read(archive.path_of(paper.key, results))
        missing += [(paper.key, study.name) for study in studies if not _is_there(rows.get(study.name, []), study)]
    return missing


def _is_there(rows: Sequence[archive.ArchiveRow], study: Study) -> bool:
    return bool(rows) and all(row["words"] == list(study.overrides) for row in rows)


def _draw(chosen: Sequence[Paper], claims: Sequence[str], results: Path, quick: bool) -> None:
    """Write the pages of the chosen papers and the table of all, and print the score.

    Where claims were asked for, print their verdicts and pages, and write no pages of other papers."""
    pipelines = Pipelines.read(results, quick)
    all_results = [Results.read(paper, results, pipelines) for paper in papers()]
    for paper_results in all_results:
        if paper_results.paper in chosen or not (claims or page_of(paper_results.paper, results).exists()):
            with archive.reading(archive.path_of(paper_results.paper.key, results)):
                write_paper(paper_results, results)
    score = write_overview(all_results, results) if not claims or (results / OVERVIEW).exists() else ""
    if not claims:
        print(score)
    for paper_results in all_results:
        for claim in paper_results.paper.claims if paper_results.paper in chosen else ():
            if claim.id in claims:
                print(verdict_lines(paper_results, claim, results))


if __name__ == "__main__":
    sys.exit(main())
