"""Run the command `dsgd-reproduce`: what the papers say, what came out here, and whether it agrees."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from dsgd.cli.arguments import Parser, version_line
from dsgd.cli.folders import check_writable, owned
from dsgd.cli.rounds import Unfinished, Usage, ended
from dsgd.host.signals import Interruption
from studies.cli.forecast import Cost, forecast
from studies.cli.paper_studies import Venue, run_pipelines, run_study
from studies.cli.yardstick import RESULTS, YARDSTICK, write_yardstick
from studies.evidence.trial import TRIALS
from studies.papers import papers
from studies.reproduction import archive
from studies.reproduction.overview import OVERVIEW, write_overview
from studies.reproduction.pages import Results, page_of, verdict_lines, write_paper
from studies.reproduction.paper import FULL, REAL, SCALES, SMALL, Paper, Study

Wanted = Sequence[tuple[Paper, Sequence[Study]]]

ALL = "all"  # papers
EXAMPLES = """\
    dsgd-reproduce all                          every paper: make the missing runs, then write the pages
    dsgd-reproduce jin2016 --claim J1           one claim
    dsgd-reproduce --redraw                     pages and figures from the logged runs, no training
    dsgd-reproduce all --anew                   make all runs again
    dsgd-reproduce all --anew --forecast        print how many core-hours all runs would take
    dsgd-reproduce yardstick                    compare the simulator's times with published measurements
    dsgd-reproduce all --scale real             the claims about learning, by the protocol: many core-hours
    dsgd-reproduce lian2017 --scale full --on slurm slurm.partition=gpu

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
            keys = ", ".join([ALL, YARDSTICK, *(paper.name for paper in papers(typed.scale))])
            raise Usage(f"{EXAMPLES}\ndsgd-reproduce: PAPER must be given, one of {keys}, got none; --help says more")
        chosen, claims = _chosen(papers(typed.scale), names, tuple(typed.claim))
        wanted = _wanted(chosen, claims, tuple(typed.study))
        results = Path(typed.results or ("results/papers_full" if typed.scale == FULL else "results/papers"))
        if typed.forecast:
            _forecast(wanted, results, typed.scale, typed.anew, interruption)
            return
        logged = [results / TRIALS, *(archive.path_of(paper.key, results) for paper in papers(typed.scale))]
        if typed.redraw and not any(path.exists() for path in logged):
            raise ValueError(f"--redraw needs logged runs in {results}, got none")
        check_writable(results, "--results")
        if not typed.redraw:
            check_writable(Path(typed.folder), "--folder")
        with owned(results, "--results"):
            for paper in papers(typed.scale):  # a broken archive is found before anything runs
                archive.read(archive.path_of(paper.key, results))
            if not typed.redraw:
                venue = Venue(Path(typed.folder) / typed.scale, typed.jobs, typed.on, tuple(slurm))
                _run(wanted, venue, results, typed.scale, typed.anew, interruption)
            _draw(chosen, claims, results, typed.scale)

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
    command_line.add_argument(
        "--study", action="append", default=[], metavar="NAME", help="only these runs, like few_8_shapes"
    )
    command_line.add_argument(
        "--redraw", action="store_true", help="run nothing: pages and figures from the logged runs"
    )
    command_line.add_argument(
        "--forecast", action="store_true", help="run nothing: core-hours of the runs that are missing"
    )
    command_line.add_argument("--anew", action="store_true", help="ignore the logged runs and make all runs again")
    command_line.add_argument(
        "--scale", choices=SCALES, default=SMALL, help="scale of models and data (default: %(default)s)"
    )
    command_line.add_argument(
        "--on", choices=("here", "slurm"), default="here", help="where to run (default: %(default)s)"
    )
    command_line.add_argument("--jobs", type=int, metavar="N", help="runs at a time here (default: one for each core)")
    command_line.add_argument(
        "--folder", default="outputs/papers", metavar="DIR", help="folder of the records (default: %(default)s)"
    )
    command_line.add_argument(
        "--results", metavar="DIR", help="folder of logged runs and pages (default: results/papers)"
    )
    command_line.add_argument("targets", nargs="*", metavar="PAPER | slurm.KEY=VALUE")
    return command_line


def _chosen(
    known: Sequence[Paper], names: Sequence[str], claims: tuple[str, ...]
) -> tuple[list[Paper], tuple[str, ...]]:
    """Return the papers and the claims that a command line asks for. Raises ValueError for others than there are."""
    keys = [paper.name for paper in known]
    for name in names:
        if name not in (ALL, *keys):
            raise ValueError(f"PAPER must be one of {', '.join([ALL, YARDSTICK, *keys])}, got {name}")
    chosen = [paper for paper in known if not names or ALL in names or paper.name in names]
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
    if typed.jobs is not None and typed.jobs < 1:
        raise ValueError(f"--jobs must be >= 1, got {typed.jobs}")
    if typed.forecast and typed.redraw:
        raise ValueError("--forecast is of runs, --redraw makes none: give one of them")
    if typed.redraw and typed.anew:
        raise ValueError("--redraw runs nothing, --anew runs everything: give one of them")
    for word in slurm:
        if not word.startswith("slurm."):
            raise ValueError(f"words must be papers or slurm.KEY=VALUE, got {word}")
        if typed.on != "slurm":
            raise ValueError(f"{word.partition('=')[0]} needs --on slurm, got --on {typed.on}")


def _check_alone(typed: argparse.Namespace, names: Sequence[str]) -> None:
    """Raise ValueError if the yardstick is asked for with what belongs to papers."""
    given = {"another PAPER": len(names) > 1, "--claim": typed.claim, "--on": typed.on != "here"}
    given["--scale"] = typed.scale != SMALL
    for what in (name for name, value in given.items() if value):
        raise ValueError(f"{YARDSTICK} must be without {what}, which belongs to papers, got {' '.join(names)} with it")


def _run(
    wanted: Wanted,
    venue: Venue,
    results: Path,
    scale: str,
    anew: bool,
    interruption: Interruption,
) -> None:
    """Make the runs that are missing, and add them to the archives, a study at a time. Raises Unfinished when all that
    can be run has been, if runs failed or are with SLURM."""
    unfinished = []
    missing = _missing(wanted, results, scale, anew)
    for paper, studies in wanted:
        if paper.needs:
            run_pipelines(paper.needs, results, venue, interruption)
        path = archive.path_of(paper.key, results)
        rows = archive.read(path)
        for study in studies:
            overrides = study.at(scale)
            if overrides is None or (paper.key, study.name) not in missing:
                continue
            print(f"{paper.key}: {study.command(scale)}", file=sys.stderr, flush=True)
            if study.by is not None:
                print(f"{paper.key}: {study.name} is left to you, see docs/explanation/papers.md", file=sys.stderr)
                continue
            here = Venue(venue.folder / paper.key, venue.at_once, venue.on, venue.slurm)
            part = f"study {1 + missing.index((paper.key, study.name))} of {len(missing)}" if len(missing) > 1 else ""
            try:
                rows[study.name] = run_study(study, overrides, here, interruption, part)
            except Unfinished as line:
                unfinished.append(f"{paper.key} {study.name}: {line}")
                continue
            order = [entry.name for entry in paper.studies]
            rows = {name: rows[name] for name in order if name in rows}
            archive.write(path, rows)
    if unfinished:
        raise Unfinished("; ".join(unfinished))


def _forecast(wanted: Wanted, results: Path, scale: str, anew: bool, interruption: Interruption) -> None:
    """Print what each study that is missing costs, and their sum. Writes nothing."""
    missing = _missing(wanted, results, scale, anew)
    total = Cost()
    for paper, studies in wanted:
        for study in studies:
            overrides = study.at(scale)
            if overrides is not None and study.by is None and (paper.key, study.name) in missing:
                interruption.check()
                cost = forecast(study, overrides)
                total += cost
                print(f"{paper.key} {study.name}: {cost}", flush=True)
    print(f"all: {total}")


def _missing(wanted: Wanted, results: Path, scale: str, anew: bool) -> list[tuple[str, str]]:
    """Return the studies whose runs are not in the archives, as keys of papers and names."""
    missing = []
    for paper, studies in wanted:
        rows = archive.read(archive.path_of(paper.key, results))
        for study in studies:
            overrides = study.at(scale)
            if overrides is not None and (anew or not _is_there(rows.get(study.name, []), overrides)):
                missing.append((paper.key, study.name))
    return missing


def _is_there(rows: Sequence[archive.ArchiveRow], overrides: Sequence[str]) -> bool:
    return bool(rows) and all(row["words"] == list(overrides) for row in rows)


def _draw(chosen: Sequence[Paper], claims: Sequence[str], results: Path, scale: str) -> None:
    """Write the pages of the chosen papers and the table of all, and print the score.

    Where claims were asked for, print their verdicts and pages, and write no pages of other papers."""
    scales = (FULL,) if scale == FULL else (SMALL, REAL)  # of one overview
    all_results = [Results.read(paper, results, each_scale) for each_scale in scales for paper in papers(each_scale)]
    names = {paper.name for paper in chosen}
    if not claims and len(chosen) == len(papers(scale)):  # all: some papers have studies at the other scale alone
        names |= {paper_results.paper.name for paper_results in all_results}
    for paper_results in all_results:
        if paper_results.paper.name in names or not (claims or page_of(paper_results.paper, results).exists()):
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
