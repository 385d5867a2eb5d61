"""Make the runs of a paper's study, those that are missing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dsgd.cli.compose import ConfigTree, Job
from dsgd.cli.folders import folder_lock
from dsgd.cli.local_sweep import label_jobs
from dsgd.cli.tally import Tally
from dsgd.comparison.entries import FOLDERS
from dsgd.comparison.rounds import LocalRunner, SlurmRunner
from dsgd.host.signals import Interruption
from dsgd.record.reader import Run
from dsgd.runner.plan import KnownModels, check_with_torch, plan_run
from studies.evidence.contrast import Need
from studies.evidence.make_trials import make_missing
from studies.reproduction.archive import ArchiveRow, rows_of
from studies.reproduction.paper import Study


@dataclass(frozen=True)
class Venue:
    """Where runs are made. folder: of their records. at_once: how many at a time here; None: one a core. on: `here` or
    `slurm`; slurm: its `slurm.KEY=VALUE`."""

    folder: Path
    at_once: int | None
    on: str
    slurm: tuple[str, ...]


def run_study(study: Study, venue: Venue, interruption: Interruption, part: str = "") -> list[ArchiveRow]:
    """Return the lines of a study for its paper's archive, after making the runs that are missing.

    part: beginning of its progress line, `study 2 of 5`. Raises ValueError, Unfinished and KeyboardInterrupt."""
    # of other overrides it is another study
    folder = venue.folder / f"{study.name}-{hashlib.sha256(json.dumps([*study.overrides]).encode()).hexdigest()[:8]}"
    jobs = ConfigTree().grid(study.overrides, FOLDERS)
    models: KnownModels = []
    for job in jobs:
        check_with_torch(plan_run(job.values, job.overrides), venue.on == "here", models)
    interruption.check()
    label_jobs(jobs)
    with folder_lock(folder, "--folder"):
        return rows_of(study.name, study.overrides, _records(jobs, folder, venue, interruption, part))


def run_pipelines(
    needs: Sequence[Need], results: Path, venue: Venue, interruption: Interruption, quick: bool = False
) -> None:
    """Make the trials and clocks that are missing, and add them to the archive. quick: of one replicate. Raises what
    `run_study` does."""

    def run(jobs: Sequence[Job], folder: Path) -> Sequence[Run]:
        return _records(jobs, folder, venue, interruption)

    make_missing(needs, results, run, venue.folder / "pipelines", quick)


def _records(
    jobs: Sequence[Job], folder: Path, venue: Venue, interruption: Interruption, part: str = ""
) -> Sequence[Run]:
    """Return the records of jobs below a folder, after making those that are missing. part: see `run_study`."""
    if venue.on == "slurm":
        return SlurmRunner(folder, None, venue.slurm).run(jobs)
    tally = Tally(part)
    try:
        return LocalRunner(folder, None, interruption, tally, venue.at_once).run(jobs)
    finally:
        tally.close()
