"""Write the batch script of an array: one task for each point, each with its command line in plain sight."""

from __future__ import annotations

import shlex
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from dsgd.sweep.manifest import Point
from dsgd.sweep.site import JobSize, Site, directives

HEAD = """\
#!/bin/bash
{options}

# Written by dsgd-sweep. Each task of this array is one run.
sweep={sweep}
case $SLURM_ARRAY_TASK_ID in
{cases}
*) echo "this array has no task $SLURM_ARRAY_TASK_ID" >&2; exit 2 ;;
esac
"""

START = """
# resume=auto: after a requeue the run goes on from its checkpoint
srun --ntasks={tasks} --cpus-per-task={cpus} \\
    {command} "${{point[@]}}" "hydra.run.dir='$sweep/$run'" resume=auto
status=$?
"""

REQUEUE = """
# 130: stopped by SLURM's warning, with a checkpoint (#SBATCH --signal); go on when there is time again
if [ "$status" -eq 130 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
"""


def script(name: str, points: Sequence[Point], folder: Path, size: JobSize, site: Site) -> str:
    """Return the batch script of an array of points of one size. folder: of the sweep, absolute."""
    beside = Path(sysconfig.get_path("scripts")) / "dsgd-run"
    # a container has its own; nodes may have no PATH to where this command is
    program = "dsgd-run" if site.container or not beside.is_file() else str(beside)
    setup = [f"module load {shlex.quote(module)}" for module in site.modules]
    setup += [f"export {key}={shlex.quote(_word(value))}" for key, value in site.environment.items()]
    setup += site.setup
    lines = "".join(f"\n{line}" for line in setup) + "\n" if setup else ""
    head = HEAD.format(
        options="\n".join(f"#SBATCH {option}" for option in directives(site, size, name)),
        sweep=shlex.quote(str(folder).replace("'", "\\'")),  # for quotes of Hydra's grammar
        cases="\n".join(f"{index}) {_case(point)} ;;" for index, point in enumerate(points)),
    )
    start = START.format(tasks=size.tasks, cpus=size.cpus_per_task, command=shlex.join([*site.container, program]))
    return head + lines + start + (REQUEUE if site.requeue else "") + "exit $status\n"


def _case(point: Point) -> str:
    own = ["--config-dir", point.config_dir] if point.config_dir else []
    return f"run={shlex.quote(point.folder)}; point=({shlex.join([*own, *point.overrides])})"


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
