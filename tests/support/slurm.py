"""A real SLURM on one machine, for tests: four nodes and a login node, each a host of `tests.support.network`.

    with Slurm(folder) as slurm:
        job = slurm.submit("srun hostname", "--nodes=4", f"--output={folder}/out")
        assert slurm.wait(job) == "COMPLETED"

Hosts h1 to h4 are the nodes, with a slurmd each. Host h5 is the login node and has slurmctld and munged, with a key of
their own; nothing is read from or written to /etc. Files are the machine's: a shared file system. There are two
partitions: `low`, whose jobs are requeued when one of `high` wants their nodes; `--signal` is sent then as well. A node
claims four processors, whatever the machine has. There is no accounting database, so sacct finds nothing.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import network
from tests.support.network import Network

NODES = range(1, 5)
LOGIN = 5
PATIENCE_S = 60  # with the daemons, and with a job that does nothing
KILL_WAIT_S = 5  # between SIGTERM and SIGKILL
TOOLS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol", "squeue", "sinfo", "scancel")
SYSTEM = "/usr/sbin:/sbin"  # where the daemons are, which not every PATH has
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "OUT_OF_MEMORY")

# cred_expire is also how long a requeued job is held back. The nodes' state is UNKNOWN until they have been heard of.
CONFIGURATION = """
ClusterName=test
SlurmctldHost=h{login}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
ReturnToService=2
KillWait={kill_wait}
SlurmdTimeout=20
MessageTimeout=20
MinJobAge=3600
{nodes}
PartitionName=low Nodes=h[1-4] Default=YES PriorityTier=1 PreemptMode=REQUEUE MaxTime=INFINITE
PartitionName=high Nodes=h[1-4] PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE
"""


class Slurm:
    """The cluster: up when this returns, gone after `close` or the end of this process, whatever ends it.

    folder: for its configuration, state and logs; its path is short, because sockets are in it.
    environment: for commands on the login node. Raises network.Unavailable."""

    def __init__(self, folder: Path, rate: str = "1gbit") -> None:
        self.folder = folder
        self._network = Network(hosts=LOGIN, rate=rate)
        self._daemons: list[subprocess.Popen[bytes]] = []
        outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        path = f"{os.environ.get('PATH', os.defpath)}:{SYSTEM}"
        self.environment = {**outside, "PATH": path, "SLURM_CONF": str(folder / "slurm.conf")}
        try:
            self._configure()
            munge = folder / "munge"
            places = [f"--{name}-file={munge / name}" for name in ("key", "pid", "log", "seed")]
            self._daemon(LOGIN, "munged", "--foreground", "--force", f"--socket={munge / 'socket'}", *places)
            self._wait_until((munge / "socket").exists, "munged does not start")
            self._daemon(LOGIN, "slurmctld", "-D", "-c")
            for node in NODES:
                self._daemon(node, "slurmd", "-D")
            self._wait_until(lambda: self.idle() == len(NODES), "its nodes do not become idle")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Slurm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all daemons and jobs and take the network away. May be called again."""
        self._network.close()
        for daemon in self._daemons:
            daemon.wait(PATIENCE_S)

    # Commands and jobs

    def run(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """subprocess.run on the login node, for text; what it prints is captured, its failure is an error."""
        options = {"capture_output": True, "text": True, "check": True, "env": self.environment} | options
        options.setdefault("timeout", PATIENCE_S)
        return self._network.run(LOGIN, *command, **options)

    def submit(self, script: str, *options: str, **run: Any) -> str:
        """The number of a new batch job. script: its lines. options: of sbatch."""
        whole = script if script.startswith("#!") else f"#!/bin/bash\n{script}\n"
        return self.run("sbatch", "--parsable", *options, input=whole, **run).stdout.strip()

    def job(self, job: str) -> dict[str, str]:
        """What the controller knows about a job: JobState, Restarts, ExitCode, NodeList, ..."""
        said = self.run("scontrol", "--oneliner", "show", "job", job).stdout
        return dict(re.findall(r"(\S+?)=(.*?)(?= [A-Za-z/:]+=|$)", said.strip()))

    def wait(self, job: str, timeout_s: float = PATIENCE_S) -> str:
        """Wait until a job has ended and its nodes are free; the state. Fails if it takes longer."""
        deadline = time.monotonic() + timeout_s
        while (state := self.job(job)["JobState"]) not in ENDED:
            assert time.monotonic() < deadline, f"job {job} was to end in {timeout_s:g} s, and is {state}"
            time.sleep(0.1)
        return state

    def idle(self) -> int:
        """How many nodes have nothing to do."""
        said = self.run("sinfo", "--noheader", "--partition=low", "--Node", "--format=%t", check=False).stdout
        return said.split().count("idle")

    def settle(self) -> None:
        """End all jobs, and wait until every node is free."""
        self.run("scancel", "--user=root")
        self._wait_until(lambda: self.idle() == len(NODES), "its nodes do not become idle again")

    def processes(self, node: int) -> dict[int, str]:
        """What runs on a node besides slurmd: names by process id."""
        found = self._network.processes(node)
        return {pid: name for pid, name in found.items() if not name.startswith("slurmd")}

    def _daemon(self, host: int, *command: str) -> None:
        with (self.folder / f"{command[0]}-h{host}.out").open("ab") as out:
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
            self._daemons.append(self._network.popen(host, *command, env=self.environment, **options))

    def _configure(self) -> None:
        for name in ("munge", "state", *(f"spool-h{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "munge").chmod(0o711)
        key = self.folder / "munge" / "key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        address = self._network.address
        described = [f"NodeName=h{i} NodeAddr={address(i)} CPUs=4 RealMemory=16000 State=UNKNOWN" for i in NODES]
        values = {"login": LOGIN, "address": address(LOGIN), "folder": self.folder, "kill_wait": KILL_WAIT_S}
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(nodes="\n".join(described), **values))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")  # none is used

    def _wait_until(self, condition: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{problem}; logs are in {self.folder}")
            time.sleep(0.05)


@functools.cache
def available() -> str | None:
    """Why this machine cannot run the cluster; None if it can."""
    missing = [tool for tool in TOOLS if shutil.which(tool, path=f"{os.environ.get('PATH', '')}:{SYSTEM}") is None]
    if missing:
        return f"needs the tools {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge)"
    return network.available()
