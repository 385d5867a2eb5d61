"""The traces of all ranks of a job: their common steps, and the collectives that they took part in together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, median

from dsgd.traces.json_stream import TraceError
from dsgd.traces.kineto import TracedCollective
from dsgd.traces.rank_trace import RankTrace, TracedStep, read_rank

PATTERNS = ("*.json", "*.json.gz")
LEAST_APART_S = 1.0  # of the clocks of two ranks, from which their traces may be of two runs
HANDLER = "on_trace_ready=tensorboard_trace_handler(FOLDER) writes one of each rank"
SHOWN = 8  # ranks that a message names


@dataclass(frozen=True)
class JointCollective:
    """A collective of several ranks. ranks: members of its group, None: not in the traces. parts: its part on each
    rank that has a trace."""

    step: int
    kind: str
    n_bytes: float | None
    ranks: tuple[int, ...] | None
    parts: Mapping[int, TracedCollective]

    @property
    def last_rank(self) -> int:
        """Return the rank that the others waited for: the one on which the collective was shortest."""
        return min(self.parts, key=lambda rank: self.parts[rank].seconds)

    @property
    def transfer_s(self) -> float:
        """Return the time that it took when all ranks had come."""
        return self.parts[self.last_rank].seconds

    def waiting_s(self, rank: int) -> float:
        """Return how long a rank waited for the last one."""
        return self.parts[rank].seconds - self.transfer_s


@dataclass(frozen=True)
class TracedJob:
    """A job of world_size ranks. traces: traces of all of them, in order, or of one. steps: numbers of the steps that
    all traces have. collectives: collectives of these steps, in order of the first trace."""

    world_size: int
    traces: tuple[RankTrace, ...]
    steps: tuple[int, ...]
    collectives: tuple[JointCollective, ...]

    @property
    def on_gpu(self) -> bool:
        """Return whether kernels of a GPU are in the traces."""
        return self.traces[0].on_gpu

    @cached_property
    def clocks_s(self) -> dict[int, float]:
        """Return how much later each rank's clock is than the first one's. The ends of collectives, which are about the
        same moment, show it."""
        first = self.traces[0].rank
        apart: dict[int, list[float]] = {trace.rank: [] for trace in self.traces}
        for joint in self.collectives:
            if first in joint.parts:
                for rank, part in joint.parts.items():
                    apart[rank].append(part.end_s - joint.parts[first].end_s)
        return {rank: median(differences) if differences else 0.0 for rank, differences in apart.items()}

    def steps_of(self, trace: RankTrace) -> list[TracedStep]:
        """Return the common steps of a trace."""
        numbers = set(self.steps)
        return [step for step in trace.steps if step.number in numbers]

    def share_of_host(self) -> float:
        """Return the share of the steps in which devices neither compute nor communicate, on average over ranks."""
        steps = [step for trace in self.traces for step in self.steps_of(trace)]
        return sum(step.host_s for step in steps) / sum(step.seconds for step in steps)

    def mean_s(self, trace: RankTrace, value: Callable[[TracedStep], float]) -> float:
        """Return the mean of a value over the common steps of a trace."""
        return fmean(map(value, self.steps_of(trace)))


def trace_files(path: str) -> list[Path]:
    """Return the traces that a path names: itself, or the traces of a folder. Raises TraceError if there are none."""
    given = Path(path)
    if not given.is_dir():
        return [given]
    files = sorted({file for pattern in PATTERNS for file in given.glob(pattern)})
    if not files:
        raise TraceError(f"{path} must have traces of the profiler ({', '.join(PATTERNS)}), got none: {HANDLER}")
    return files


def read_job(path: str, progress: Callable[[int], None] = lambda _: None) -> TracedJob:
    """Read the trace of one rank, or the traces of all ranks in a folder.

    progress: called with the bytes that are read of all files. Raises TraceError, which names the file."""
    traces: list[RankTrace] = []
    before = 0
    for file in trace_files(path):
        start = before

        def moved(count: int, start: int = start) -> None:
            nonlocal before
            before = start + count
            progress(before)

        try:
            traces.append(read_rank(str(file), moved))
        except TraceError as error:
            raise TraceError(f"{file}: {error}") from None
    return join(traces, alone=not Path(path).is_dir())


def join(traces: Sequence[RankTrace], alone: bool = False) -> TracedJob:
    """Make a job of the traces of its ranks. alone: whether a single trace is enough. Raises TraceError."""
    traces = sorted(traces, key=lambda trace: trace.rank)
    first = traces[0]
    _check_ranks(traces, alone)
    numbers = [{step.number for step in trace.steps} for trace in traces]
    steps = tuple(sorted(set.intersection(*numbers)))
    if not steps:
        other = max(traces, key=lambda trace: abs(trace.steps[0].number - first.steps[0].number))
        spans = (f"{trace.path} has {trace.steps[0].number} to {trace.steps[-1].number}" for trace in (first, other))
        raise TraceError(f"traces must be of the same steps, with one schedule on all ranks: {', '.join(spans)}")
    job = TracedJob(first.world_size, tuple(traces), steps, tuple(_joint(traces, steps)))
    if not job.collectives:
        device = "ProfilerActivity.CUDA" if first.on_gpu else "a process group: DDP, or dist.all_reduce in the step"
        raise TraceError(f"{first.path}: its steps have no collectives, which needs {device}")
    span_s = traces[0].steps[-1].end_s - traces[0].steps[0].begin_s
    for trace in traces:
        apart_s = job.clocks_s[trace.rank] + trace.base_s - first.base_s
        if abs(apart_s) > max(LEAST_APART_S, span_s):
            raise TraceError(
                f"traces must be of one run on clocks that agree (NTP): the same collectives end {apart_s:.6g} s later "
                f"in {trace.path} than in {first.path}"
            )
    return job


def _check_ranks(traces: Sequence[RankTrace], alone: bool) -> None:
    first = traces[0]
    by_rank: dict[int, str] = {}
    for trace in traces:
        for name in ("world_size", "on_gpu"):
            if (mine := getattr(trace, name)) != (other := getattr(first, name)):
                raise TraceError(
                    f"traces must be of one job, got {name} {other} in {first.path} and {mine} in {trace.path}"
                )
        if trace.rank in by_rank:
            files = f"{by_rank[trace.rank]} and {trace.path}"
            raise TraceError(f"a folder must have one trace of a rank, with repeat=1, got two of {trace.rank}: {files}")
        by_rank[trace.rank] = trace.path
    if first.world_size == 1:
        raise TraceError(f"{first.path} must be of a distributed job, got a world_size of 1")
    missing = [rank for rank in range(first.world_size) if rank not in by_rank]
    if missing and not alone:
        names = ", ".join(map(str, missing[:SHOWN])) + (", ..." if len(missing) > SHOWN else "")
        raise TraceError(
            f"a folder must have the traces of all {first.world_size} ranks, got {len(by_rank)} without "
            f"rank{'s'[: len(missing) > 1]} {names}: {HANDLER}; or give one file"
        )


def _joint(traces: Sequence[RankTrace], steps: Iterable[int]) -> list[JointCollective]:
    """Join the collectives of the same kind, size and group in each step. Raises TraceError if ranks of one group
    differ in them."""
    wanted = set(steps)
    parts: dict[tuple[int, str, float | None, tuple[int, ...] | None, int], dict[int, TracedCollective]] = {}
    for trace in traces:
        for step in (step for step in trace.steps if step.number in wanted):
            seen: dict[tuple[str, float | None, tuple[int, ...] | None], int] = defaultdict(int)
            for part in step.collectives:
                name = (part.kind, part.n_bytes, part.ranks)
                parts.setdefault((step.number, *name, seen[name]), {})[trace.rank] = part
                seen[name] += 1
    known = {trace.rank: trace.path for trace in traces}
    for (step, kind, n_bytes, ranks, _), of_ranks in parts.items():
        members = known if ranks is None and traces[0].groups <= 1 else ranks or ()
        for rank in members:
            if rank in known and rank not in of_ranks:
                size = "unknown size" if n_bytes is None else f"{n_bytes:g} bytes"
                raise TraceError(
                    f"traces must be of one job: in step {step} {known[min(of_ranks)]} has an {kind} of {size} that "
                    f"{known[rank]} has not"
                )
    return [JointCollective(*key[:4], of_ranks) for key, of_ranks in parts.items()]
