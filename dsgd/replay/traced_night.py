"""A job described by its profiler traces: its cluster, its step, and where the time of this step goes."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsgd.cli.from_trace import read_traces
from dsgd.cli.traced_cluster import JobCheck, check_job, doubts, write_cluster
from dsgd.traces.cluster_fit import fit_cluster
from dsgd.traces.traced_job import TracedJob
from dsgd.traces.traced_timeline import seconds_by_kind

CLUSTER = "cluster=traced_job"  # in the folder of a traced night


@dataclass(frozen=True)
class TracedNight:
    """A traced job, the check of its description, and the folder with its cluster for --config-dir."""

    job: TracedJob
    check: JobCheck
    folder: str

    @property
    def step_s(self) -> float:
        """Return the mean time of a traced step."""
        return self.check.step_s[1]

    def seconds(self, steps: int) -> dict[str, float]:
        """Return the seconds of some traced steps by kind, of the mean rank."""
        return {kind: steps * mean_s for kind, mean_s in seconds_by_kind(self.job).items()}

    def with_host(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """Return predicted seconds by kind, in which gradients have the traced share of waiting for the host."""
        traced = seconds_by_kind(self.job)
        gradient_s = traced["compute"] + traced["host"]
        host_s = seconds["compute"] * (traced["host"] / gradient_s if gradient_s else 0.0)
        return {**seconds, "compute": seconds["compute"] - host_s, "host": host_s}


@contextmanager
def traced_night(path: str) -> Iterator[TracedNight]:
    """Read and describe a job, check the description, and keep its cluster's files until the block ends.

    path: trace, or folder with a trace of each rank. Doubts are printed. Raises ValueError for traces that do not carry
    a description."""
    job = read_traces(path, "the traces")
    fit = fit_cluster(job)
    check = check_job(job, fit)
    for line in fit.notes:
        print(f"not in the trace: {line}", file=sys.stderr)
    for line in doubts(job, fit, check):
        print(f"warning: {line}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        write_cluster(job, fit, Path(folder))
        yield TracedNight(job, check, folder)
