"""Result of checking a command line. Imports neither Hydra nor torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dsgd.record.written import write_atomically

if TYPE_CHECKING:
    from dsgd.engines.dist.launch.meeting import Joined
    from dsgd.runner.plan import Plan

RUN_FOLDER, SWEEP_FOLDER = "hydra.run.dir", "hydra.sweep.dir"
MULTIRUN = "multirun.yaml"
NO_LOGS = {"version": 1, "root": {"level": "ERROR"}, "disable_existing_loggers": True}  # job_logging: disabled


def disable_logs() -> None:
    """Set up logging as Hydra does where it writes nothing."""
    from logging.config import dictConfig  # imports a server

    dictConfig(NO_LOGS)


@dataclass(frozen=True)
class Multirun:
    """A sweep whose jobs can be started without Hydra. folder: of the sweep. config: its configuration, as YAML."""

    folder: Path
    config: str

    def begin(self) -> None:
        """Write the configuration into the folder and set up logging, as Hydra does before the first job."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / MULTIRUN, self.config.encode())
        disable_logs()


@dataclass(frozen=True)
class Checked:
    """A command line that was checked before Hydra acts on it.

    plans: of its jobs, by their number, as far as they run on this machine; None: there is nothing left to do. labels:
    of the jobs of a sweep. at_once: that run at a time. overrides: what Hydra is given besides. folders: for each run's
    folder the one above it that existed already. joined: with the processes of a launcher. multirun: the sweep, where
    Hydra is not needed. needs_hydra: a single run, which Hydra does more for than to start it. sweep_folder: the one
    folder of all jobs."""

    plans: Sequence[Plan | None] = ()
    labels: Sequence[str] = ()
    at_once: int = 1
    overrides: Sequence[str] = ()
    folders: Mapping[Path, Path] = field(default_factory=dict)
    joined: Joined | None = None
    multirun: Multirun | None = None
    needs_hydra: bool = True
    sweep_folder: Path | None = None
