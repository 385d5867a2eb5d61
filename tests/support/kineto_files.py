"""Traces as torch.profiler writes them, of jobs whose times are given: by gloo, or by NCCL of any age."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MS = 1e3  # microseconds
NAMES = {
    "nccl": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "old": "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "rccl": "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
    "rccl's own": "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
    "msccl": "mscclKernel_Sum_float_LL_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
}


def event(name: str, category: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    """A complete event; ts, dur: in microseconds."""
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


@dataclass(frozen=True)
class Bucket:
    """An all-reduce of float32 in a step: when it is called and when it runs, in ms from the step's beginning."""

    elements: int
    called_ms: float
    begin_ms: float
    end_ms: float
    ranks: Sequence[int] | None = None  # None: all


@dataclass(frozen=True)
class Step:
    """A step of a rank: seconds are milliseconds here. work: begins and ends of operators or kernels."""

    begin_ms: float
    end_ms: float
    work: Sequence[tuple[float, float]]
    buckets: Sequence[Bucket] = ()


@dataclass(frozen=True)
class Rank:
    """The trace of a rank. kind: gloo, or one of NAMES. clock_ms: how much its clock is ahead."""

    rank: int
    world_size: int
    steps: Sequence[Step]
    kind: str = "gloo"
    host: str | None = None
    clock_ms: float = 0.0
    groups: Sequence[Sequence[int]] | None = None  # None: one, of all
    more: Mapping[str, Any] = field(default_factory=dict)

    def trace(self) -> dict[str, Any]:
        groups = self.groups or [range(self.world_size)]
        config = [{"pg_name": str(k), "pg_size": len(each), "ranks": [*each]} for k, each in enumerate(groups)]
        info = {"backend": "nccl", "rank": self.rank, "world_size": self.world_size, "pg_config": config}
        head: dict[str, Any] = {"schemaVersion": 1, "distributedInfo": info, "displayTimeUnit": "ms"}
        if self.host is not None:
            head["host_name"] = self.host
        events = [each for number, step in enumerate(self.steps, 3) for each in self._events(number, step)]
        return head | {"baseTimeNanoseconds": 0, "traceEvents": events, "traceName": "x"} | dict(self.more)

    def _events(self, number: int, step: Step) -> Iterator[dict[str, Any]]:
        origin = (1e9 + self.clock_ms + step.begin_ms) * MS
        length = (step.end_ms - step.begin_ms) * MS
        yield event(f"ProfilerStep#{number}", "user_annotation", origin, length)
        yield event("SgdBackward0", "cpu_op", origin, 0.1)
        launch = 1000 * number
        for begin, end in step.work:
            if self.kind == "gloo":
                yield event("aten::mm", "cpu_op", origin + begin * MS, (end - begin) * MS)
                yield event("aten::view", "cpu_op", origin + begin * MS + 1, 1.0)
            else:
                launch += 1
                yield event("cudaLaunchKernel", "cuda_runtime", origin + 1, 1.0, correlation=launch)
                yield event("sgemm", "kernel", origin + begin * MS, (end - begin) * MS, 7, correlation=launch)
        for bucket in step.buckets:
            launch += 1
            yield from self._bucket(bucket, origin, launch)

    def _bucket(self, bucket: Bucket, origin: float, launch: int) -> Iterator[dict[str, Any]]:
        called, begin = origin + bucket.called_ms * MS, origin + bucket.begin_ms * MS
        duration = (bucket.end_ms - bucket.begin_ms) * MS
        shape = {"Input Dims": [[bucket.elements]], "Input type": ["float"]}
        lists = {"Input Dims": [[[bucket.elements]], []], "Input type": ["TensorList", ""]}
        ranks = [*range(self.world_size)] if bucket.ranks is None else [*bucket.ranks]
        if self.rank not in ranks:
            return
        yield event("c10d::allreduce_", "cpu_op", called - 2, 2.0, **lists)
        if self.kind == "gloo":
            yield event("gloo:all_reduce", "user_annotation", begin, duration, 50 + launch % 2, **shape)
            return
        yield event("nccl:all_reduce", "user_annotation", called - 1, 1.0, **shape)
        yield event("cudaLaunchKernelExC", "cuda_runtime", called - 0.5, 0.2, correlation=launch)
        yield event("nccl:all_reduce", "gpu_user_annotation", begin, duration, 20)
        args: dict[str, Any] = {"correlation": launch}
        if self.kind != "old":
            args |= {"Collective name": "allreduce", "In msg nelems": bucket.elements, "dtype": "Float"}
            args |= {"Out msg nelems": bucket.elements, "Group size": len(ranks), "Process Group Ranks": str(ranks)}
        yield event(NAMES[self.kind], "kernel", begin, duration, 20, **args)


def write_trace(path: Path, trace: Any) -> Path:
    """Write a trace, packed if its name says so."""
    content = json.dumps(trace).encode()
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
    return path


def lockstep_job(
    gradients_ms: Sequence[Sequence[float]],
    elements: Sequence[int],
    fixed_ms: float,
    byte_ms: float,
    kind: str = "gloo",
    hosts: Sequence[str] | None = None,
    clocks_ms: Sequence[float] | None = None,
) -> list[Rank]:
    """A job without overlap: in each step, every rank computes, [ranks, steps], and then takes part in all-reduces, one
    after the other, which take fixed_ms + bytes * byte_ms from the last rank on."""
    ranks = range(len(gradients_ms))
    steps: list[list[Step]] = [[] for _ in ranks]
    now = 0.0
    for number in range(len(gradients_ms[0])):
        ready = [gradients_ms[rank][number] for rank in ranks]
        end = max(ready)
        spans = []
        for count in elements:
            spans.append((end, end + fixed_ms + 4 * count * byte_ms))
            end = spans[-1][1]
        for rank in ranks:
            free, buckets = ready[rank], []
            for count, (_, stop) in zip(elements, spans, strict=True):
                buckets.append(Bucket(count, ready[rank], free, stop))
                free = stop
            steps[rank].append(Step(now, now + end, [(0.0, ready[rank])], buckets))
        now += end
    return [
        Rank(
            rank, len(ranks), steps[rank], kind,
            None if hosts is None else hosts[rank], 0.0 if clocks_ms is None else clocks_ms[rank],
        )
        for rank in ranks
    ]  # fmt: skip


def write_job(folder: Path, ranks: Sequence[Rank], suffix: str = ".pt.trace.json") -> Path:
    """Write the traces of a job into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        write_trace(folder / f"rank{rank.rank}{suffix}", rank.trace())
    return folder
