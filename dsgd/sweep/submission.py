"""Submit points of a sweep: an array for each size of job, noted in the manifest before and after."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from dsgd.record.writer import write_atomically
from dsgd.sweep import slurm
from dsgd.sweep.manifest import MANIFEST, RUNS, ManifestWriter, Point, Sweep, read
from dsgd.sweep.site import JobSize, Site, job_size, script

LOGS, JOBS = "logs", "jobs"


def arrays(points: Iterable[Point], site: Site) -> dict[JobSize, list[Point]]:
    """Gather points into arrays by the size of their jobs. Raises ValueError where the site cannot give that."""
    found: dict[JobSize, list[Point]] = {}
    for point in points:
        found.setdefault(job_size(point, site), []).append(point)
    return found


def submit(
    writer: ManifestWriter,
    folder: Path,
    points: Sequence[Point],
    site: Site,
    words: Sequence[str],
    largest: int,
    report: Callable[[str, JobSize, int], None],
) -> None:
    """Submit arrays of points that the manifest lists.

    folder: of the sweep. words: the `slurm.*` of the command line that chose the site. largest: how many points an
    array may have. report: called with the job, its size and its number of points.

    Raises SlurmError; what was submitted before stays submitted."""
    folder = folder.absolute()
    for name in (LOGS, JOBS, RUNS):
        (folder / name).mkdir(exist_ok=True)
    for size, members in arrays(points, site).items():
        for start in range(0, len(members), largest):
            part = members[start : start + largest]
            token = secrets.token_hex(4)
            path = folder / JOBS / f"{token}.sh"
            write_atomically(path, script(_job_name(token), part, folder, size, site).encode())
            writer.submitting(token, part, words)
            try:
                job = slurm.submit(path, len(part), site.at_once, Path.cwd(), log(folder, "%A_%a"))
            except slurm.NoAnswer:
                raise  # `recover` will find out
            except slurm.SlurmError as error:
                writer.refused(token, str(error))
                raise
            writer.submitted(token, job)
            report(job, size, len(part))


def recover(writer: ManifestWriter, folder: Path) -> Sweep:
    """Read a sweep, after asking SLURM about submissions whose outcome is not noted because their submitter died."""
    sweep = read(folder) if (folder / MANIFEST).exists() else Sweep(folder)
    for token in sweep.submitting:
        job = slurm.find_job(_job_name(token))
        if job is None:
            writer.refused(token, "it never came to SLURM")
        else:
            writer.submitted(token, job)
    return read(folder) if sweep.submitting else sweep


def log(folder: Path, task: str) -> Path:
    """Return the file that an array task prints to."""
    return folder / LOGS / f"{task}.log"


def _job_name(token: str) -> str:
    return f"dsgd-{token}"
