"""The steps of one rank: what its device computed, which communication it waited for, and when the host was late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from dsgd.traces.intervals import Intervals, clipped, common, gaps, length, merged, union, without
from dsgd.traces.json_stream import TraceError
from dsgd.traces.kineto import (
    MOST_RANKS,
    CollectiveCall,
    Recording,
    TracedCollective,
    of_whole,
    read_recording,
    whole_number,
)

LATE_S = 2e-3  # after a thread of gloo has woken the waiting one, it may record its end so much later
STEP_OPTION = "call profiler.step() after each step, with schedule(wait=1, warmup=2, active=20)"


@dataclass(frozen=True)
class TracedStep:
    """A step of a rank. number: n of ProfilerStep#n. begin_s, end_s: seconds on the rank's clock. computing_s: kernels
    outside of communication, merged; without a GPU operators. exposed_s: communication that the device waits for.
    hidden_s: the other communication. host_s: time without kernels, operators and communication. busy, waits: times of
    computing, and of the communication that the device waits for."""

    number: int
    begin_s: float
    end_s: float
    computing_s: float
    exposed_s: float
    hidden_s: float
    host_s: float
    collectives: tuple[TracedCollective, ...]
    busy: Intervals = field(default_factory=lambda: np.empty((0, 2)), compare=False, repr=False)
    waits: Intervals = field(default_factory=lambda: np.empty((0, 2)), compare=False, repr=False)

    @property
    def seconds(self) -> float:
        """Return its duration."""
        return self.end_s - self.begin_s

    @property
    def gradient_s(self) -> float:
        """Return the time of the step without exposed communication: a gradient, and all other work of the rank."""
        return self.seconds - self.exposed_s


@dataclass(frozen=True)
class RankTrace:
    """The trace of one rank. host: name of its machine, None: not in the trace. base_s: origin of its clock in seconds
    since 1970. groups: number of process groups, 0: not in the trace."""

    path: str
    rank: int
    world_size: int
    host: str | None
    base_s: float
    groups: int
    on_gpu: bool
    steps: tuple[TracedStep, ...]


def read_rank(path: str, progress: Callable[[int], None] = lambda _: None) -> RankTrace:
    """Read the trace of a rank. progress: called with the bytes that are read. Raises TraceError, without the path."""
    recording = read_recording(path, progress)
    if not recording.steps:
        raise TraceError(f"it has no steps (ProfilerStep#n): {STEP_OPTION}")
    rank, world_size = (whole_number(recording.distributed.get(name)) for name in ("rank", "world_size"))
    if rank is None or world_size is None or not rank < world_size <= MOST_RANKS:
        raise TraceError(
            "it has no distributedInfo with rank and world_size: call init_process_group before the profiler starts, "
            "with torch 2.0 or later"
        )
    if not recording.trains:
        raise TraceError("it has no backward pass, so it is of inference: profile training, with ProfilerActivity.CPU")
    on_gpu = len(recording.kernels) > 0
    if recording.calls and not recording.spans:
        raise TraceError("it has no collectives, only their calls: profile with ProfilerActivity.CUDA")
    groups = recording.distributed.get("pg_config")
    return RankTrace(
        path, rank, world_size, recording.host, recording.base_s, len(groups) if isinstance(groups, list) else 0,
        on_gpu, tuple(_steps(recording, on_gpu)),
    )  # fmt: skip


def _steps(recording: Recording, on_gpu: bool) -> list[TracedStep]:
    spans = sorted(recording.steps, key=lambda step: step[1])
    for (before, _, end_s), (number, begin_s, _) in pairwise(spans):
        if number <= before or begin_s < end_s - 1e-5:
            raise TraceError(f"its steps must follow one another, got ProfilerStep#{number} inside or after #{before}")
    windows = [(begin_s, end_s) for _, begin_s, end_s in spans]
    collectives = _launched(recording)
    if on_gpu:
        times = np.frombuffer(recording.kernels).reshape(-1, 2)
        busy = merged(times[:, 0], times[:, 1])
        begins = _of_kernels(recording, windows, times)
    else:
        threads = [times for thread, times in recording.operators.items() if thread not in recording.gloo_threads]
        busy = union(np.frombuffer(times).reshape(-1, 2) for times in threads)
        begins = None
    by_step: dict[int, list[TracedCollective]] = defaultdict(list)
    starts = np.array([begin_s for begin_s, _ in windows])
    for collective in sorted(collectives, key=lambda each: each.begin_s):
        moment = collective.begin_s if collective.launched_s is None else collective.launched_s
        step = int(np.searchsorted(starts, moment, "right")) - 1
        if step >= 0 and moment < windows[step][1]:
            by_step[step].append(collective)
    waits = _intervals(collectives, on_gpu)
    ends = np.sort([each.end_s for each in collectives])
    late_s = 0.0 if on_gpu else LATE_S
    steps = []
    for k, (number, _, _) in enumerate(spans):
        begin_s, end_s = windows[k] if begins is None else begins[k]
        steps.append(_step(number, begin_s, end_s, busy, waits, ends, late_s, by_step[k]))
    return steps


def _step(
    number: int,
    begin_s: float,
    end_s: float,
    busy: Intervals,
    waits: Intervals,
    ends: np.ndarray,
    late_s: float,
    collectives: Sequence[TracedCollective],
) -> TracedStep:
    """Split the time of a step. The device waits for communication in a gap of its work in which a collective ends,
    or up to late_s behind it; communication in other gaps hides behind a host that is late."""
    idle = gaps(busy, begin_s, end_s)
    communication = clipped(waits, begin_s, end_s)
    ended = np.searchsorted(ends, idle[:, 1] + late_s, "right") > np.searchsorted(ends, idle[:, 0], "right")
    waiting = idle[ended]
    exposed, computing = common(waiting, communication), clipped(busy, begin_s, end_s)
    exposed_s, host_s = length(exposed), length(without(idle, communication))
    hidden_s = length(communication) - exposed_s
    return TracedStep(
        number, begin_s, end_s, length(computing), exposed_s, hidden_s, host_s, tuple(collectives), computing, exposed
    )


def moment_of(collective: TracedCollective, on_gpu: bool) -> float:
    """Return when a collective could begin: a thread of gloo may come late, and a GPU is called ahead of its work."""
    late = collective.launched_s is None or on_gpu
    return collective.begin_s if late else collective.launched_s or 0.0


def _intervals(collectives: Sequence[TracedCollective], on_gpu: bool) -> Intervals:
    """Return the times in which communication runs or, without a GPU, waits for a thread of gloo."""
    begins = [moment_of(each, on_gpu) for each in collectives]
    return merged(np.array(begins), np.array([each.end_s for each in collectives]))


def _of_kernels(
    recording: Recording, windows: Sequence[tuple[float, float]], times: Intervals
) -> list[tuple[float, float]] | None:
    """Return begin and end of each step on the GPU, which may be late: from its first kernel to that of the next step.
    None if the launch of a step's kernels is not in the trace."""
    launched = _launch_times(recording, np.frombuffer(recording.kernel_numbers, np.int64))
    step = np.searchsorted([begin_s for begin_s, _ in windows], launched, "right") - 1
    inside = (step >= 0) & (launched < np.array([end_s for _, end_s in windows])[step])
    begins = np.full(len(windows), np.inf)
    np.minimum.at(begins, step[inside], times[inside, 0])
    if not np.isfinite(begins).all() or (np.diff(begins) <= 0).any():
        return None
    last = times[inside & (step == len(windows) - 1), 1].max()
    edges = [*begins.tolist(), max(float(last), windows[-1][1])]
    return list(pairwise(edges))


def _launch_times(recording: Recording, numbers: np.ndarray) -> np.ndarray:
    """Return the moments at which the host launched the kernels with these correlations, NaN where unknown."""
    known, moments = np.frombuffer(recording.launch_numbers, np.int64), np.frombuffer(recording.launch_times)
    if not len(known):
        return np.full(len(numbers), np.nan)
    order = np.argsort(known, kind="stable")
    index = np.minimum(np.searchsorted(known[order], numbers), len(known) - 1)
    return np.where(known[order][index] == numbers, moments[order][index], np.nan)


def _launched(recording: Recording) -> list[TracedCollective]:
    """Return the collectives with the moment of their call and, where only the call has it, their size."""
    numbers = np.array([-1 if number is None else number for _, _, number in recording.spans], np.int64)
    moments = _launch_times(recording, numbers)
    calls = sorted(recording.calls, key=lambda call: call.begin_s)
    begins = np.array([call.begin_s for call in calls])
    of_size: dict[tuple[str, int | None], list[CollectiveCall]] = defaultdict(list)
    for call in calls:
        of_size[call.kind, call.elements].append(call)
    collectives = []
    known_s = [span[0].begin_s for span, moment in zip(recording.spans, moments, strict=True) if not np.isnan(moment)]
    first_s = min(known_s, default=-np.inf)
    for k in sorted(range(len(numbers)), key=lambda k: recording.spans[k][0].begin_s):
        collective, elements, number = recording.spans[k]
        if number is not None and np.isnan(moments[k]) and collective.begin_s < first_s:
            continue  # launched before the recording began
        call = None
        if number is None:  # of gloo: calls of one size are served in order
            waiting = of_size[collective.kind, elements]
            if waiting and waiting[0].begin_s <= collective.begin_s:
                call = waiting.pop(0)
        elif not np.isnan(moments[k]):
            before = int(np.searchsorted(begins, moments[k], "right")) - 1
            if before >= 0 and moments[k] <= calls[before].end_s:
                call = calls[before]
            collective = replace(collective, launched_s=float(moments[k]))
        if call is not None:
            kind = collective.kind if call.kind == "other" else call.kind  # all-to-all: its kernels send and receive
            n_bytes = collective.n_bytes
            if n_bytes is None:
                n_bytes = of_whole(kind, call.n_bytes, collective.ranks)
            launched_s = collective.launched_s
            if launched_s is None:  # a busy core may leave the call for the thread of gloo
                launched_s = min(call.end_s, collective.begin_s)
            collective = replace(collective, kind=kind, n_bytes=n_bytes, launched_s=launched_s)
        collectives.append(collective)
    return collectives
