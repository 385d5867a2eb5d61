"""The runs of a comparison: missing ones are made on this machine or on SLURM, each in a folder with its hash."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from dsgd.cli.arguments import one_line
from dsgd.cli.compose import Job
from dsgd.cli.folders import refuse_links
from dsgd.cli.jobs import plan_job
from dsgd.cli.local_sweep import LocalSweep
from dsgd.cli.sweep import print_job, site_of
from dsgd.cli.tally import Tally
from dsgd.host.signals import Interrupted, Interruption, interruptible
from dsgd.host.stop import EXIT_CONFIG, EXIT_INTERRUPTED
from dsgd.record.reader import Run, find_runs, number
from dsgd.record.safe_files import json_object, read_bounded, write_atomically
from dsgd.record.safe_text import counted, for_terminal
from dsgd.runner.gradient_time import is_open, with_time_of_kind
from dsgd.runner.plan import Plan, with_wandb_group
from dsgd.runner.resume import ENDED, NothingToDo, contents
from dsgd.runner.values import ConfigError
from dsgd.sweep import slurm_jobs
from dsgd.sweep.manifest import Point, engine_of, locked_sweep, point_of
from dsgd.sweep.slurm_jobs import FINISHED, WAITING

TIMES, TIMES_BYTES = "gradient_times.json", 2**20

EXIT_UNFINISHED = 1


class Unfinished(Exception):
    """Runs have not ended: one line that names them, and says what to do."""


class Runner(Protocol):
    """Runs the jobs without a complete record."""

    def run(self, jobs: Sequence[Job], later: int = 0, about: bool = False) -> list[Run]:
        """Return the record of every job. later: number of following runs. about: True if that is an estimate.

        Raises Unfinished, ConfigError and KeyboardInterrupt."""
        ...


@dataclass
class LocalRunner:
    """Runs jobs on this machine."""

    _folder: Path  # of the comparison
    _config_dir: str | None
    _interruption: Interruption
    _tally: Tally  # counts the runs of all calls
    _at_once: int | None = None  # number of parallel runs; None: one a core
    _printed: set[str] = field(default_factory=set)  # common lines of all runs, printed once

    def run(self, jobs: Sequence[Job], later: int = 0, about: bool = False) -> list[Run]:
        points = [point_of(job.values, job.overrides, self._config_dir) for job in jobs]
        self._tally.expect(self._tally.ended + len(jobs) + later, about)
        self._run_missing(jobs, points)
        return find_runs([self._folder / point.folder for point in points]) if points else []

    def _run_missing(self, jobs: Sequence[Job], points: Sequence[Point]) -> None:
        for job, point in zip(jobs, points, strict=True):
            refuse_links(self._folder, point.folder, "--folder")
            job.folder = (self._folder / point.folder).absolute()
            job.standing = self._folder.absolute()
            with suppress(NothingToDo):  # it has no plan then
                job.plan = plan_job(job, job.folder, in_place=True)
        different = list({job.folder: job for job in jobs}.values())
        self._tally.count_before(len(jobs) - len(different))
        for job in different:
            if job.plan is not None:
                plan = self._timed(replace(job.plan, contents=contents(job.folder)))
                job.plan = with_wandb_group(plan, self._folder.name)
        outcome: dict[Path, str] = {}
        LocalSweep(different, self._at_once, outcome, self._interruption, self._tally, self._printed).run()
        if "interrupted" in outcome.values():
            raise Interrupted
        if failed := [folder.name for folder in outcome if outcome[folder] not in ENDED]:
            raise Unfinished(
                f"{counted(len(failed), 'run')} failed ({', '.join(failed)}), which the same command begins again"
            )

    def _timed(self, plan: Plan) -> Plan:
        """Return the plan with the common gradient time of all runs of the comparison, if the cluster does not set it:
        measured once, and stored in the folder."""
        if not is_open(plan):
            return plan
        path = self._folder / TIMES
        times = json_object(read_bounded(path, TIMES_BYTES)) if path.exists() else {}
        if times is None or any(math.isnan(number(times[kind])) for kind in times):
            raise ConfigError(f"{path} must hold the seconds of gradients, got something else")
        before = len(times)
        plan = with_time_of_kind(plan, times)
        if len(times) > before:
            write_atomically(path, (json.dumps(times, indent=1) + "\n").encode())
        return plan


class SlurmRunner:
    """Submits jobs as dsgd-sweep does; its status, logs, cancel and retry also work on the folder of the comparison.
    overrides: the `slurm.KEY=VALUE` of the command line."""

    def __init__(self, folder: Path, config_dir: str | None, overrides: Sequence[str]) -> None:
        self._folder = folder
        self._config_dir = config_dir
        self._words = list(overrides)
        self._site = site_of(overrides, config_dir)

    def run(self, jobs: Sequence[Job], later: int = 0, about: bool = False) -> list[Run]:
        for job in jobs:
            values = job.values
            cluster = values["cluster"]
            timed = cluster.get("gradient_s", 0) is not None or cluster.get("compute_trace") is not None
            if engine_of(values) == "sim" and not timed:
                raise ConfigError(
                    "cluster.gradient_s must be given with compare.on=slurm, as every job would measure its own"
                )
        points = {point.id: point for point in (point_of(job.values, job.overrides, self._config_dir) for job in jobs)}
        largest = slurm_jobs.largest_array()
        with locked_sweep(self._folder) as writer:
            sweep = slurm_jobs.recover(writer, self._folder)
            states = {state.point.id: state.name for state in slurm_jobs.states(sweep)[0]}
            writer.points([point for key, point in points.items() if key not in sweep.points])
            missing = [points[key] for key in points if states.get(key) not in (*FINISHED, *WAITING)]
            if missing:
                slurm_jobs.submit(writer, self._folder, missing, self._site, self._words, largest, print_job)
        if waiting := sum(states.get(key) not in FINISHED for key in points):
            raise Unfinished(
                f"{counted(waiting, 'run')} with SLURM (dsgd-sweep status --folder {shlex.quote(str(self._folder))}); "
                "repeat the command when they have ended"
            )
        return find_runs([self._folder / point.folder for point in points.values()])


class Usage(Exception):
    """A command has no arguments: lines with examples, and one line that names the missing argument."""


def command_status(program: str, work: Callable[[Interruption], None]) -> int:
    """Do the work of a command. Returns 0; 1 if runs failed or are missing; 2 after one line on stderr; 130 after a
    signal, which the work checks where it can end."""
    try:
        with interruptible() as interruption:
            work(interruption)
        return 0
    except Unfinished as line:
        print(f"{program}: {one_line(line)}", file=sys.stderr)
        return EXIT_UNFINISHED
    except Usage as lines:
        print(lines, file=sys.stderr)
        return EXIT_CONFIG
    except ValueError as error:
        print(f"{program}: {one_line(error)}", file=sys.stderr)
        return EXIT_CONFIG
    except OSError as error:  # the disk is full, a folder has gone
        line = for_terminal(f"{error.strerror}: {error.filename}; repeat the command to resume")
        print(f"{program}: {line}", file=sys.stderr)
        return EXIT_UNFINISHED
    except KeyboardInterrupt:
        print(f"{program}: interrupted; repeat the command to resume", file=sys.stderr)
        return EXIT_INTERRUPTED
