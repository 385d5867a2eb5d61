"""Describe a SLURM site, the resources of a point of a sweep, and the batch script of an array of points."""

from __future__ import annotations

import math
import re
import shlex
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from dsgd.keys import check_options
from dsgd.sweep.manifest import Point

WORD = re.compile(r"[^\s'\"\\]+")
TIME = re.compile(r"(\d+-\d{1,2}(:\d{2}(:\d{2})?)?|\d+:\d{2}:\d{2})")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Options that every job is given, and that the site must not set.
OWN = ["array", "chdir", "cpus-per-task", "gpus-per-node", "job-name", "nodes", "no-requeue", "ntasks"]
OWN += ["ntasks-per-node", "open-mode", "output", "parsable", "requeue", "signal", "wrap"]

REQUEUE = """
# 130: stopped by SLURM's warning, with a checkpoint (#SBATCH --signal); resumed when there is time again
if [ "$status" -eq 130 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
"""


@dataclass(frozen=True)
class Site:
    """The configuration keys `slurm.*`, explained in conf/slurm/default.yaml. None: the site's own default."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time: str = "01:00:00"
    mem: str | None = None
    tasks_per_node: int = 1
    cpus_per_task: int | None = None
    gpus_per_task: int = 0
    at_once: int | None = None
    requeue: bool = True
    warning_s: int = 120
    options: Mapping[str, Any] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    environment: Mapping[str, Any] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)
    container: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not TIME.fullmatch(self.time):
            raise ValueError(f"time must be like 2:30:00 or 1-12:00:00 (days-hours:minutes:seconds), got {self.time!r}")
        for name in ("partition", "account", "qos", "constraint", "mem"):
            value = getattr(self, name)
            if value is not None and not WORD.fullmatch(value):
                raise ValueError(f"{name} must be one word without quotes, got {value!r}")
        for name, least in (("tasks_per_node", 1), ("cpus_per_task", 1), ("gpus_per_task", 0), ("at_once", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be >= {least}, got {value}")
        check_options(self, warning_s="in [0, 65535]")
        for name, value in self.options.items():
            if name in OWN:
                raise ValueError(f"options must not hold {name}, which every job is given, got {value!r}")
            if not re.fullmatch(r"[a-z][a-z-]*", name) or not (value is True or WORD.fullmatch(_text(value))):
                raise ValueError(
                    f"options must be long options of sbatch, like {{reservation: x}}, got {name}: {value!r}"
                )
        for name, value in self.environment.items():
            if not NAME.fullmatch(name) or not isinstance(value, str | int | float):
                raise ValueError(f"environment must give variables their values, got {name}: {value!r}")
        for name in self.modules:
            if not WORD.fullmatch(name):
                raise ValueError(f"modules must be names of modules, got {name!r}")

    @property
    def hours(self) -> float:
        """Return the time limit of one stretch of a point in hours."""
        days, _, clock = self.time.rpartition("-")
        hours, minutes, seconds = ([int(part) for part in clock.split(":")] + [0, 0])[:3]
        return 24 * int(days or 0) + hours + minutes / 60 + seconds / 3600


@dataclass(frozen=True)
class JobSize:
    """The machines, tasks, cores and GPUs of one job. Points of the same size share an array."""

    nodes: int  # machines
    tasks: int
    tasks_per_node: int
    cpus_per_task: int
    gpus_per_node: int


def job_size(point: Point, site: Site) -> JobSize:
    """Return the size of a point's job: a task for each worker of real processes, one for a whole simulation.

    Raises ValueError if the site lacks the point's resources."""
    per_node = min(site.tasks_per_node, point.tasks)
    if point.gpus > site.gpus_per_task:
        raise ValueError(
            f"slurm.gpus_per_task must be >= engine.gpus_per_node = {point.gpus}, got {site.gpus_per_task}"
        )
    return JobSize(
        nodes=math.ceil(point.tasks / per_node),
        tasks=point.tasks,
        tasks_per_node=per_node,
        cpus_per_task=site.cpus_per_task or point.threads,
        gpus_per_node=site.gpus_per_task * per_node,  # not --gpus-per-task: each worker counts its GPUs among all
    )


def directives(site: Site, size: JobSize, name: str) -> list[str]:
    """Return the #SBATCH options of a job, without array, folder and output."""
    options: dict[str, Any] = {
        "job-name": name,
        "nodes": size.nodes,
        "ntasks": size.tasks,
        "ntasks-per-node": size.tasks_per_node,
        "cpus-per-task": size.cpus_per_task,
        "gpus-per-node": size.gpus_per_node or None,
        "time": site.time,
        "mem": site.mem,
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "constraint": site.constraint,
        "requeue" if site.requeue else "no-requeue": True,
        "open-mode": "append",
        "signal": f"USR1@{site.warning_s}" if site.warning_s else None,
        **site.options,
    }
    given = ((key, value) for key, value in options.items() if value is not None and value is not False)
    return [f"--{key}" if value is True else f"--{key}={_text(value)}" for key, value in given]


def batch_script(name: str, points: Sequence[Point], folder: Path, size: JobSize, site: Site) -> str:
    """Return the batch script of an array of points of one size. folder: folder of the sweep, absolute."""
    beside = Path(sysconfig.get_path("scripts")) / "dsgd-run"
    # a container has its own; nodes may lack this command in their PATH
    program = "dsgd-run" if site.container or not beside.is_file() else str(beside)
    setup = [f"module load {shlex.quote(module)}" for module in site.modules]
    setup += [f"export {key}={shlex.quote(_word(value))}" for key, value in site.environment.items()]
    setup += site.setup
    template = files("dsgd.sweep").joinpath("job.txt").read_text(encoding="utf-8")
    return template.format(
        options="\n".join(f"#SBATCH {option}" for option in directives(site, size, name)),
        sweep=shlex.quote(str(folder).replace("'", "\\'")),  # for quotes of Hydra's grammar
        cases="\n".join(f"{index}) {_case(point)} ;;" for index, point in enumerate(points)),
        setup="".join(f"\n{line}" for line in setup) + "\n" * bool(setup),
        tasks=size.tasks,
        cpus=size.cpus_per_task,
        command=shlex.join([*site.container, program]),
        requeue=REQUEUE if site.requeue else "",
    )


def _case(point: Point) -> str:
    arguments = ["--config-dir", point.config_dir] if point.config_dir else []
    return f"run={shlex.quote(point.folder)}; point=({shlex.join([*arguments, *point.overrides])})"


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(value: Any) -> str:
    return "" if value is None else str(value)
