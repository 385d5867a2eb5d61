"""Submit points of a sweep: an array for each request, written down before and after."""

from __future__ import annotations

import secrets
import shutil
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from dsgd.record.writer import write_atomically
from dsgd.sweep import slurm
from dsgd.sweep.batch import script
from dsgd.sweep.manifest import RUNS, Point, Sweep, Writer
from dsgd.sweep.site import Request, Site, request

LOGS, JOBS = "logs", "jobs"


def arrays(points: Iterable[Point], site: Site) -> dict[Request, list[Point]]:
    """The points of each array. Raises ValueError where the site cannot give what a point needs."""
    found: dict[Request, list[Point]] = {}
    for point in points:
        found.setdefault(request(point, site), []).append(point)
    return found


def text(name: str, points: Sequence[Point], folder: Path, wanted: Request, site: Site) -> str:
    """The batch script. folder: of the sweep, absolute."""
    beside = Path(sysconfig.get_path("scripts")) / "dsgd-run"
    # a container has its own; nodes may have no PATH to where this command is
    program = "dsgd-run" if site.container or not beside.is_file() else str(beside)
    return script(name, points, folder, wanted, site, program)


def submit(
    writer: Writer,
    folder: Path,
    points: Sequence[Point],
    site: Site,
    words: Sequence[str],
    largest: int,
    say: Callable[[str, Request, int], None],
) -> None:
    """Submit arrays of points that the manifest knows. folder: of the sweep. words: what the site was chosen with.
    largest: how many points an array may have. say: is told the job, its request and how many points it has.

    Raises SlurmError; what was submitted before stays submitted."""
    folder = folder.absolute()
    for name in (LOGS, JOBS, RUNS):
        (folder / name).mkdir(exist_ok=True)
    for wanted, members in arrays(points, site).items():
        for start in range(0, len(members), largest):
            part = members[start : start + largest]
            token = secrets.token_hex(4)
            path = folder / JOBS / f"{token}.sh"
            write_atomically(path, text(job_name(token), part, folder, wanted, site).encode())
            writer.submitting(token, part, words)
            try:
                job = slurm.submit(path, len(part), site.at_once, Path.cwd(), log(folder, "%A_%a"))
            except slurm.NoAnswer:
                raise  # `recover` will know
            except slurm.SlurmError as error:
                writer.refused(token, str(error))
                raise
            writer.submitted(token, job)
            say(job, wanted, len(part))


def recover(writer: Writer, sweep: Sweep) -> None:
    """Find out what became of submissions whose end was not written down, because their submitter died."""
    for token in list(sweep.submitting):
        job = slurm.named(job_name(token))
        if job is None:
            writer.refused(token, "it never came to SLURM")
        else:
            writer.submitted(token, job)


def job_name(token: str) -> str:
    return f"dsgd-{token}"


def log(folder: Path, task: str) -> Path:
    """Where an array task prints to."""
    return folder / LOGS / f"{task}.log"


def largest_array() -> int:
    """How many points an array may have here. Raises SlurmError where nothing can be submitted from."""
    if shutil.which("sbatch") is None:
        raise slurm.SlurmError("sbatch must be on the PATH (a login node of SLURM has it), got none")
    return slurm.largest_array()
