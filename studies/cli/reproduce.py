"""Run the command `dsgd-reproduce`: what the papers say, what came out here, and whether it agrees."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from dsgd.cli.arguments import Parser, command_parser
from dsgd.cli.folders import check_writable, folder_lock
from dsgd.comparison.rounds import Unfinished, Usage, command_status
from dsgd.host.signals import Interruption
from studies.cli.paper_studies import Venue, run_pipelines, run_study
from studies.cli.yardstick import RESULTS, YARDSTICK, write_yardstick
from studies.evidence.forecast import forecast
from studies.evidence.pipeline import Pipelines
from studies.evidence.trial import TRIALS
from studies.papers import papers
from studies.reproduction import archive
from studies.reproduction.overview import OVERVIEW, write_overview
from studies.reproduction.pages import Results, page_of, verdict_lines, write_paper
from studies.reproduction.paper import Paper, Study

PaperStudy = tuple[Paper, Study]

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
    """Run a command line; returns its exit status, see `command_status`."""

    def work(interruption: Interruption) -> None:
        typed = parser().parse_args(argv)
        names = [word for word in typed.targets if "=" not in word]
        slurm = [word for word in typed.targets if "=" in word]
        _check(typed, slurm)
        if YARDSTICK in names:
            _check_alone(typed, names)
            write_yardstick(Path(typed.results or RESULTS), typed.redraw, interruption)
            return
        known = papers()
        if not (names or typed.claim or typed.redraw):
            keys = ", ".join([ALL, YARDSTICK, *(paper.key for paper in known)])
            raise Usage(f"{EXAMPLES}\ndsgd-reproduce: PAPER must be given, one of {keys}, got none; --help says more")
        chosen, claims = _chosen(known, names, typed.claim), tuple(typed.claim)
        wanted = _wanted(chosen, claims, typed.study)
        results = Path(typed.results or ("outputs/quick" if typed.quick else "results/papers"))
        if typed.forecast:
            _forecast(chosen, claims, Pipelines.read(results, typed.quick))
            return
        logged = [results / TRIALS, *(archive.path_of(paper.key, results) for paper in known)]
        if typed.redraw and not any(path.exists() for path in logged):
            raise ValueError(f"--redraw needs logged runs in {results}, got none")
        check_writable(results, "--results")
        if not typed.redraw:
            check_writable(Path(typed.folder), "--folder")
        with folder_lock(results, "--results"):
            for paper in known:  # a broken archive is found before anything runs
                archive.read(archive.path_of(paper.key, results))
            if not typed.redraw:
                venue = Venue(Path(typed.folder), typed.jobs, typed.on, tuple(slurm))
                if not typed.study:
                    needs = [need for paper in chosen for need in paper.needs_of(claims)]
                    run_pipelines(needs, results, venue, interruption, typed.quick)
                _run(wanted, venue, results, interruption)
            _draw(known, chosen, claims, results, typed.quick)

    return command_status("dsgd-reproduce", work)


def parser() -> Parser:
    """Return the parser of the command line."""
    about = "Repeat the papers' experiments, and compare the results with the papers' claims."
    command_line = command_parser("dsgd-reproduce", about, EXAMPLES)
    add = command_line.add_argument
    add("--claim", action="append", default=[], metavar="ID", help="only the runs of this claim, like J1")
    add("--study", action="append", default=[], metavar="NAME", help="only these runs, like idle")
    add("--redraw", action="store_true", help="run nothing: pages and figures from the logged runs")
    add("--forecast", action="store_true", help="run nothing: core-hours of the runs that are missing")
    add("--quick", action="store_true", help="one replicate of each pipeline: all runs work, nothing is decided")
    add("--on", choices=("here", "slurm"), default="here", help="where to run (default: %(default)s)")
    add("--jobs", type=int, metavar="N", help="runs at a time here (default: one for each core)")
    add("--folder", default="outputs/papers", metavar="DIR", help="folder of the records (default: %(default)s)")
    where = "folder of logged runs and pages (default: results/papers, or outputs/quick)"
    add("--results", metavar="DIR", help=where)
    for flag in WITHDRAWN:
        add(flag, nargs="?", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add("targets", nargs="*", metavar="PAPER | slurm.KEY=VALUE")
    return command_line


def _chosen(known: Sequence[Paper], names: Sequence[str], claims: Sequence[str]) -> list[Paper]:
    """Return the papers that a command line asks for. Raises ValueError for others than there are."""
    _check_known("PAPER", names, [ALL, YARDSTICK, *(paper.key for paper in known)])
    chosen = [paper for paper in known if not names or ALL in names or paper.key in names]
    _check_known("--claim", claims, [claim.id for paper in chosen for claim in paper.claims])
    return [paper for paper in chosen if not claims or any(claim.id in claims for claim in paper.claims)]


def _wanted(chosen: Sequence[Paper], claims: tuple[str, ...], names: Sequence[str]) -> list[PaperStudy]:
    """Return the studies that a command line asks for. Raises ValueError for others than there are."""
    wanted = [(paper, study) for paper in chosen for study in paper.studies_of(claims)]
    _check_known("--study", names, [study.name for _, study in wanted])
    return [(paper, study) for paper, study in wanted if not names or study.name in names]


def _check_known(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"{what} must be one of {', '.join(known)}, got {name}")


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


def _run(wanted: Sequence[PaperStudy], venue: Venue, results: Path, interruption: Interruption) -> None:
    """Make the runs of studies that are missing, and add them to the archives, a study at a time.

    Raises Unfinished when all that can be run has been, if runs failed or are with SLURM."""
    paths = {paper.key: archive.path_of(paper.key, results) for paper, _ in wanted}
    missing = [(paper, study) for paper, study in wanted if not archive.rows_made_by([study], paths[paper.key])]
    unfinished = []
    for number, (paper, study) in enumerate(missing, start=1):
        print(f"{paper.key}: {study.command}", file=sys.stderr, flush=True)
        if study.by is not None:
            print(f"{paper.key}: {study.name} is left to you, see docs/explanation/papers.md", file=sys.stderr)
            continue
        here = replace(venue, folder=venue.folder / paper.key)
        part = f"study {number} of {len(missing)}" if len(missing) > 1 else ""
        try:
            made = run_study(study, here, interruption, part)
        except Unfinished as line:
            unfinished.append(f"{paper.key} {study.name}: {line}")
            continue
        rows = archive.read(paths[paper.key]) | {study.name: made}
        archive.write(paths[paper.key], {each.name: rows[each.name] for each in paper.studies if each.name in rows})
    if unfinished:
        raise Unfinished("; ".join(unfinished))


def _forecast(chosen: Sequence[Paper], claims: tuple[str, ...], pipelines: Pipelines) -> None:
    """Print what the pipelines that each claim misses cost, and all of them. Writes nothing."""
    for paper in chosen:
        for claim in paper.claims:
            if claim.needs and (not claims or claim.id in claims):
                print(f"{claim.id}: {forecast(claim.needs, pipelines)}", flush=True)
    print(f"all: {forecast([need for paper in chosen for need in paper.needs_of(claims)], pipelines)}")


def _draw(known: Sequence[Paper], chosen: Sequence[Paper], claims: Sequence[str], results: Path, quick: bool) -> None:
    """Write the pages of the chosen papers and the table of all, and print the score.

    Where claims were asked for, print their verdicts and pages, and write no pages of other papers."""
    pipelines = Pipelines.read(results, quick)
    all_results = [Results.read(paper, results, pipelines) for paper in known]
    for of_paper in all_results:
        if of_paper.paper in chosen or not (claims or page_of(of_paper.paper, results).exists()):
            with archive.reading(archive.path_of(of_paper.paper.key, results)):
                write_paper(of_paper, results)
    score = write_overview(all_results, results) if not claims or (results / OVERVIEW).exists() else ""
    if not claims:
        print(score)
    for of_paper in all_results:
        for claim in of_paper.paper.claims if of_paper.paper in chosen else ():
            if claim.id in claims:
                print(verdict_lines(of_paper, claim, results))


if __name__ == "__main__":
    sys.exit(main())
