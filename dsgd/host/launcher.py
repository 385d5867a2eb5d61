"""Detects from environment variables how this process was launched: by hand, by torchrun or by srun.

Does not import torch: it runs before anything slow does.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

PORTS = range(20000, 30000)  # of SLURM jobs: below Linux's range for outgoing connections
# Step ids from here on are no steps of srun: the batch script, the shell of salloc, the container for logins by ssh.
STEP, SPECIAL_STEPS = "SLURM_STEP_ID", 0xFFFFFFF0
PTY = "SLURM_PTY_PORT"  # set by srun --pty
RESTARTS = "SLURM_RESTART_COUNT"  # of the job; set from the first restart on


@dataclass(frozen=True)
class Launch:
    """The launcher of this process, and its place among the processes that were launched."""

    kind: str  # local: a single process | torchrun | slurm: within a step of srun
    rank: int  # of this process, 0..nodes-1
    nodes: int  # processes that were started
    local_rank: int  # rank of this process on its machine
    local_nodes: int  # processes on its machine
    master_address: str  # address of rank 0
    master_port: int  # 0 if local: any free one
    attempt: int  # number of restarts of the job
    job: str  # the same in all processes, another in other jobs and after a restart, as far as the launcher knows
    agent_store: bool = False  # torchrun itself already serves a TCPStore at the master's address
    step: str | None = None  # of srun, like slurm-17.0: the same after a restart; also of one task
    last_host: str | None = None  # of srun's step


def launch(environment: Mapping[str, str]) -> Launch:
    """Return how this process was launched. torchrun's variables take precedence over a surrounding srun's.

    A single process is not a launch: a shell of `srun --pty`, a container whose operator sets WORLD_SIZE=1.

    Raises ValueError, one line with the variables and their values, if they are incomplete or contradict each other."""
    if "TORCHELASTIC_RUN_ID" in environment:
        return _torchrun(environment)
    # a batch script has SLURM_PROCID=0 and the job's SLURM_NTASKS, but no step; the shell of salloc a special one
    if _number(environment, STEP, 0, default=SPECIAL_STEPS) < SPECIAL_STEPS:
        return _slurm(environment)
    # a batch script may prepare WORLD_SIZE for its srun; elsewhere it is half of a launcher's variables
    if "RANK" in environment or ("WORLD_SIZE" in environment and "SLURM_JOB_ID" not in environment):
        return _torchrun(environment)
    return _local(_number(environment, RESTARTS, 0, default=0))


def legible(environment: Mapping[str, str]) -> Launch | None:
    """Return the result of `launch`, or None instead of an error, for simulations, which ignore the launcher."""
    try:
        return launch(environment)
    except ValueError:
        return None


def advice(environment: Mapping[str, str]) -> str | None:
    """Return one line of advice for real processes inside a SLURM job but outside srun, else None."""
    if "SLURM_JOB_ID" not in environment or launch(environment).kind != "local":
        return None
    if _number(environment, STEP, 0, default=SPECIAL_STEPS) < SPECIAL_STEPS:
        return None
    return (
        f"SLURM_JOB_ID={environment['SLURM_JOB_ID']} but this is not a step of srun: all processes run on this "
        "machine; put srun before the command to start it on all machines of the job"
    )


def ends_of(nodelist: str, name: str = "nodelist") -> tuple[str, str]:
    """Return the first and the last host of a SLURM node list: n1 and m6 for n[1-3,7],m[5-6].

    name: name of the variable, for the message of the ValueError raised for other texts."""
    host = r"[^\s,\[\]]*(?:\[\d[\d,-]*\][^\s,\[\]]*)*"
    match = re.fullmatch(rf"({host})(?:,({host}))*", nodelist)
    first = re.sub(r"\[(\d+)[^\]]*\]", r"\1", match[1]) if match else ""
    if not match or not first:
        raise ValueError(f"{name} must be a list of hosts like n[1-3,7],m5, got {nodelist!r}")
    return first, re.sub(r"\[(?:[^\]]*[,-])?(\d+)\]", r"\1", match[2] or match[1])


def _local(attempt: int, step: str | None = None) -> Launch:
    job = f"local-{secrets.token_hex(8)}"
    return Launch("local", 0, 1, 0, 1, "127.0.0.1", 0, attempt, job, step=step)


def _torchrun(environment: Mapping[str, str]) -> Launch:
    nodes = _number(environment, "WORLD_SIZE", 1)
    rank = 0 if nodes == 1 and "RANK" not in environment else _below(environment, "RANK", "WORLD_SIZE", nodes)
    if nodes == 1:
        return _local(_number(environment, "TORCHELASTIC_RESTART_COUNT", 0, default=0))
    local_rank = _below(environment, "LOCAL_RANK", "WORLD_SIZE", nodes)
    address, port = _text(environment, "MASTER_ADDR"), _port(environment)
    attempt = _number(environment, "TORCHELASTIC_RESTART_COUNT", 0, default=0)
    # the run id alone is "none" in every job without a given id
    named = [environment.get(name) for name in ("SLURM_JOB_ID", STEP, RESTARTS)]
    if "TORCHELASTIC_RUN_ID" in environment:
        named.insert(0, _text(environment, "TORCHELASTIC_RUN_ID"))
    job = "-".join(["torchrun", *(part for part in named if part), address, str(port), str(attempt)])
    agent_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    local_nodes = _number(environment, "LOCAL_WORLD_SIZE", 1, default=nodes)
    return Launch("torchrun", rank, nodes, local_rank, local_nodes, address, port, attempt, job, agent_store)


def _slurm(environment: Mapping[str, str]) -> Launch:
    # srun --preserve-env leaves the job's number of tasks in SLURM_NTASKS
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    nodes = _number(environment, tasks, 1)
    rank = _below(environment, "SLURM_PROCID", tasks, nodes)
    local_rank = _below(environment, "SLURM_LOCALID", tasks, nodes)
    pairs = (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", tasks), ("LOCAL_RANK", "SLURM_LOCALID"))
    for by_hand, ours in pairs:
        if by_hand in environment and environment[by_hand] != environment[ours]:
            raise ValueError(
                f"{by_hand}={environment[by_hand]!r} contradicts {ours}={environment[ours]!r}: "
                f"unset {by_hand}, or start the processes with torchrun"
            )
    job, step = _number(environment, "SLURM_JOB_ID", 0), _number(environment, STEP, 0)
    attempt, name = _number(environment, RESTARTS, 0, default=0), f"slurm-{job}.{step}"
    if nodes == 1:  # a command typed into a shell is not a process of the step
        return _local(attempt, None if PTY in environment else name)
    hosts = "SLURM_STEP_NODELIST" if "SLURM_STEP_NODELIST" in environment else "SLURM_JOB_NODELIST"
    first, last = ends_of(_text(environment, hosts), hosts)
    address = _text(environment, "MASTER_ADDR") if "MASTER_ADDR" in environment else first
    # steps of one job, and jobs with neighbouring numbers, may share their first host
    port = _port(environment) if "MASTER_PORT" in environment else PORTS[(31 * job + step) % len(PORTS)]
    here, whole = _tasks_here(environment, nodes), f"{name}-{attempt}"
    return Launch("slurm", rank, nodes, local_rank, here, address, port, attempt, whole, step=name, last_host=last)


def _tasks_here(environment: Mapping[str, str], nodes: int) -> int:
    """Return the number of tasks on this machine, from a list like 2(x3),1 with a count per machine of the step."""
    counts: list[int] = []
    for part in environment.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match:
            counts += [int(match[1])] * int(match[2] or 1)
    here = environment.get("SLURM_NODEID", "")
    return counts[int(here)] if _whole(here) and int(here) < len(counts) else nodes


def _text(environment: Mapping[str, str], name: str) -> str:
    if name not in environment:
        marks = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", STEP)
        given = ", ".join(f"{mark}={environment[mark]!r}" for mark in marks if mark in environment)
        raise ValueError(f"{name} must be set where {given} is")
    if not environment[name].strip():
        raise ValueError(f"{name} must not be empty, got {environment[name]!r}")
    return environment[name]


def _number(environment: Mapping[str, str], name: str, least: int, default: int | None = None) -> int:
    """Return a variable's value, an integer >= least. default: value if it is not set; None: it must be set."""
    if default is not None and name not in environment:
        return default
    text = _text(environment, name)
    if not _whole(text) or int(text) < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {text!r}")
    return int(text)


def _below(environment: Mapping[str, str], name: str, limit_name: str, limit: int) -> int:
    value = _number(environment, name, 0)
    if value >= limit:
        raise ValueError(f"{name} must be below {limit_name}, got {name}={value} and {limit_name}={limit}")
    return value


def _port(environment: Mapping[str, str]) -> int:
    port = _number(environment, "MASTER_PORT", 1)
    if port > 65535:
        raise ValueError(f"MASTER_PORT must be in 1..65535, got {port}")
    return port


def _whole(text: str) -> bool:
    """Return whether the text has digits only: int() would also accept signs, blanks and underscores."""
    return re.fullmatch("[0-9]{1,18}", text) is not None
