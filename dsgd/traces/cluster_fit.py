"""Describe the cluster of a traced job: gradient times, links, buckets and start-ups, and what a trace leaves open."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, median

import numpy as np

from dsgd.traces.json_stream import TraceError
from dsgd.traces.rank_trace import moment_of
from dsgd.traces.traced_job import JointCollective, TracedJob

HOST_BOUND = 0.5  # share of the steps in which GPUs wait for the host, from which a job has no gradient time
LEAST_SHARE = 0.8  # of the communication that all-reduces over all ranks must have
ALL_REDUCE = "all_reduce"


@dataclass(frozen=True)
class Burst:
    """All-reduces that overlap, after a time in which none ran. count, n_bytes: their number and sum of bytes.
    seconds: time from the arrival of the last rank to the end. delay_s: time from the calls to the beginning."""

    count: int
    n_bytes: float
    seconds: float
    delay_s: float


@dataclass(frozen=True)
class LinkFit:
    """The time of an all-reduce of N bytes: fixed_s + N byte_s. sizes: number of different bursts behind the fit."""

    fixed_s: float
    byte_s: float
    sizes: int

    def latency_s(self, ranks: int) -> float:
        """Return the latency of a message, of which a ring has 2 (p - 1) one after the other."""
        return self.fixed_s / (2 * (ranks - 1))

    def bandwidth(self, ranks: int) -> float:
        """Return the bit/s of a port through which a ring sends 2 (p - 1) / p N bytes."""
        return 8 * 2 * (ranks - 1) / ranks / self.byte_s


@dataclass(frozen=True)
class ClusterFit:
    """The cluster of a job, as far as its traces have it.

    gradient_s: [ranks, steps], or of the only rank. message_bytes: bytes of a gradient. all_reduces: number in a step.
    hidden_s: communication that hides behind a gradient, in the traces and in the simulator. buckets: number of equal
    buckets that hide about as much there. bucket_startup_s: seconds before each of them. links: between the ranks.
    inside: links within the hosts, None: not in the traces. hosts: number of hosts with equally many consecutive ranks.
    variation: standard deviation of the transfer times over their mean, at one size. notes: things that the traces
    leave open, with their effect."""

    gradient_s: tuple[tuple[float, ...], ...]
    message_bytes: float
    all_reduces: int
    hidden_s: tuple[float, float]
    buckets: int
    bucket_startup_s: float
    links: LinkFit
    inside: LinkFit | None
    hosts: int
    variation: float
    notes: tuple[str, ...]


def fit_cluster(job: TracedJob) -> ClusterFit:
    """Fit a cluster to a job. Raises TraceError if its traces do not carry one."""
    if job.on_gpu and (share := job.share_of_host()) > HOST_BOUND:
        raise TraceError(
            f"host-bound: the GPU waits for the host {share:.0%} of the step, so neither gradient times nor links are "
            "fitted; make the host faster (torch.compile, CUDA graphs, more loader processes), and trace again"
        )
    reduces = _world_all_reduces(job)
    by_step = {step: [*each] for step, each in groupby(reduces, key=lambda joint: joint.step)}
    all_reduces = round(median(len(each) for each in by_step.values()))
    message_bytes = median(sum(joint.n_bytes or 0.0 for joint in each) for each in by_step.values())
    bursts = [burst for each in by_step.values() for burst in _bursts(job, each)]
    links = fit_links(bursts)
    gradient_s = tuple(tuple(step.gradient_s for step in job.steps_of(trace)) for trace in job.traces)
    hidden_s, work_s = _hidden_s(job), fmean(map(max, zip(*gradient_s, strict=True)))
    transfer_s = sum(burst.seconds for burst in bursts) / len(by_step)
    can_hide = {count: can_hide_s(count, work_s, transfer_s) for count in range(1, all_reduces + 1)}
    buckets = min(can_hide, key=lambda count: abs(can_hide[count] - hidden_s))
    delay_s = sum(burst.delay_s for burst in bursts) / sum(burst.count for burst in bursts)
    startup_s = all_reduces / buckets * (links.fixed_s + delay_s) - links.fixed_s
    hosts = _hosts(job)
    inside = _inside(job) if hosts > 1 else None
    return ClusterFit(
        gradient_s, message_bytes, all_reduces, (hidden_s, can_hide[buckets]), buckets, startup_s, links, inside, hosts,
        _variation(bursts), tuple(_notes(job, links, hosts, inside)),
    )  # fmt: skip


def can_hide_s(buckets: int, gradient_s: float, transfer_s: float) -> float:
    """Return the communication that equal buckets hide behind a gradient in the simulator: all buckets but the last
    one, and only from the end of the first one on. Two thirds of a gradient are the backward pass."""
    return (1 - 1 / buckets) * min(transfer_s, 2 / 3 * gradient_s)


def _world_all_reduces(job: TracedJob) -> list[JointCollective]:
    """Return the all-reduces over all ranks in the steps. Raises TraceError unless they are the communication."""
    everyone = tuple(range(job.world_size))
    whole = [
        joint
        for joint in job.collectives
        if joint.kind == ALL_REDUCE and (joint.ranks == everyone or (joint.ranks is None and job.traces[0].groups <= 1))
    ]
    total_s = sum(joint.transfer_s for joint in job.collectives)
    if sum(joint.transfer_s for joint in whole) < LEAST_SHARE * total_s or not whole:
        kinds = Counter[str]()
        for joint in job.collectives:
            members = "unknown" if joint.ranks is None else len(joint.ranks)
            kinds[f"{joint.kind} over {members} ranks"] += round(100 * joint.transfer_s / (total_s or 1.0))
        shares = ", ".join(f"{kind} {share} %" for kind, share in kinds.most_common(3))
        raise TraceError(
            f"only jobs that average gradients by all-reduces over all {job.world_size} ranks can be described, "
            f"got as shares of the communication: {shares}"
        )
    if any(joint.n_bytes is None for joint in whole):
        option = "torch 2.3 or later, or record_shapes=True" if job.on_gpu else "record_shapes=True"
        raise TraceError(f"{job.traces[0].path}: its all-reduces have no sizes: profile with {option}")
    if not sum(joint.n_bytes or 0.0 for joint in whole) or not total_s:
        raise TraceError(f"{job.traces[0].path}: its all-reduces have no bytes or take no time")
    return whole


def _bursts(job: TracedJob, joints: Sequence[JointCollective]) -> Iterator[Burst]:
    """Yield the bursts of a step, on the first trace's clock. The last rank of a collective sees its transfer alone."""
    rows = []
    for joint in joints:
        last = joint.last_rank
        part, clock_s = joint.parts[last], job.clocks_s[last]
        called_s = max(moment_of(each, job.on_gpu) - job.clocks_s[rank] for rank, each in joint.parts.items())
        rows.append((part.begin_s - clock_s, part.end_s - clock_s, called_s, joint.n_bytes or 0.0))
    rows.sort()
    free_s = -np.inf
    current: list[tuple[float, float, float, float]] = []
    delay_s = 0.0

    def burst() -> Burst:
        end_s = max(row[1] for row in current)
        return Burst(len(current), sum(row[3] for row in current), end_s - current[0][0], delay_s)

    for row in rows:
        if current and row[0] >= free_s:
            yield burst()
            current, delay_s = [], 0.0
        if not current:
            delay_s = max(0.0, row[0] - max(row[2], free_s))
        current.append(row)
        free_s = max(free_s, row[1])
    if current:
        yield burst()


def fit_links(bursts: Sequence[Burst]) -> LinkFit:
    """Fit fixed_s and byte_s to bursts: least squares of relative errors over the means at each size, then scaled, so
    that the total time is the measured one."""
    times: dict[tuple[int, float], list[float]] = defaultdict(list)
    for burst in bursts:
        times[burst.count, burst.n_bytes].append(burst.seconds)
    means = {key: fmean(each) for key, each in times.items() if sum(each) > 0}
    total_s, total_bytes = sum(burst.seconds for burst in bursts), sum(burst.n_bytes for burst in bursts)
    fixed_s, byte_s = 0.0, total_s / total_bytes
    if len(means) > 1:
        weights = np.array([len(times[key]) ** 0.5 / mean for key, mean in means.items()])
        rows = np.array([*means], float) * weights[:, None]
        solved = np.linalg.lstsq(rows, np.array([*means.values()]) * weights, rcond=None)[0]
        if solved[0] > 0 and solved[1] > 0:
            expected_s = sum(burst.count * solved[0] + burst.n_bytes * solved[1] for burst in bursts)
            fixed_s, byte_s = (float(value) * total_s / expected_s for value in solved)
    return LinkFit(fixed_s, byte_s, len(means))


def _hosts(job: TracedJob) -> int:
    """Return the number of hosts, 1 if they have not equally many consecutive ranks."""
    names = [trace.host for trace in job.traces]
    runs = [len([*each]) for _, each in groupby(names)]
    even = None not in names and len(runs) == len(set(names)) and len(set(runs)) == 1
    return len(runs) if even and len(names) == job.world_size else 1


def _inside(job: TracedJob) -> LinkFit | None:
    """Fit the links within hosts to all-reduces of groups that lie in one of them."""
    hosts = {trace.rank: trace.host for trace in job.traces}
    joints = [joint for joint in job.collectives if _is_inside(joint, hosts)]
    if len({joint.ranks and len(joint.ranks) for joint in joints}) != 1:
        return None
    return fit_links([Burst(1, joint.n_bytes or 0.0, joint.transfer_s, 0.0) for joint in joints])


def _is_inside(joint: JointCollective, hosts: dict[int, str | None]) -> bool:
    members = joint.ranks or ()
    return joint.kind == ALL_REDUCE and bool(joint.n_bytes) and len({hosts[rank] for rank in members}) == 1


def _hidden_s(job: TracedJob) -> float:
    """Return the hidden communication of a step, on the rank that waits least."""
    by_rank = [job.steps_of(trace) for trace in job.traces]
    return fmean(min(steps, key=lambda step: step.exposed_s).hidden_s for steps in zip(*by_rank, strict=True))


def _variation(bursts: Sequence[Burst]) -> float:
    """Return the standard deviation of the transfer times over their mean, among bursts of the most frequent size."""
    ((size, _),) = Counter((burst.count, burst.n_bytes) for burst in bursts).most_common(1)
    seconds = [burst.seconds for burst in bursts if (burst.count, burst.n_bytes) == size]
    return float(np.std(seconds) / np.mean(seconds)) if sum(seconds) > 0 else 0.0


def _notes(job: TracedJob, links: LinkFit, hosts: int, inside: LinkFit | None) -> Iterator[str]:
    """Yield a line for each thing that the traces leave open."""
    yield "the profiler slows each step: without it gradients are shorter, and communication counts for more"
    yield "no trace has messages between two workers: gossip and others get the all-reduce's bandwidth, as of a ring"
    if len(job.traces) == 1:
        yield (
            f"one rank of {job.world_size}: its waiting counts as transfer, so bandwidth is too low, and all ranks get "
            "its mean gradient time, so methods that wait for nobody gain nothing; trace all ranks"
        )
    if links.fixed_s == 0:
        reason = "all-reduces have one size" if links.sizes == 1 else "their times do not show one"
        yield f"no latency: {reason}; methods with many small messages look too fast"
    else:
        yield "latency and the start-up of a collective are one number: with more nodes a ring counts it more often"
    if any(trace.host is None for trace in job.traces) or len(job.traces) < job.world_size:
        yield "hosts are not in the traces (host_name, since torch 2.6): one island, all links alike"
    elif hosts == 1 and len({trace.host for trace in job.traces}) > 1:
        yield "hosts have different numbers of ranks, or not consecutive ones: one island, all links alike"
    elif hosts > 1 and inside is None and hosts < job.world_size:
        yield "no all-reduce stays inside a host: links there count as links between hosts, and islands gain nothing"
