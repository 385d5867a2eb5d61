"""Read the trace that torch.profiler writes for one rank in one pass: steps, operators, kernels and collectives."""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from dsgd.traces.json_stream import TraceError, read_events

MOST_STEPS, MOST_RANKS = 1_000_000, 100_000
MOST_US = 1e16  # 300 years
MOST_BYTES = 1e15  # of a collective, as of a message of `dsgd.cluster`
STEP = "ProfilerStep#"
# by their letters, longer names first
KINDS = {
    "reducescatter": "reduce_scatter", "allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all",
    "sendrecv": "send_recv", "broadcast": "broadcast", "scatter": "scatter", "gather": "gather", "barrier": "barrier",
    "reduce": "reduce", "send": "send", "recv": "recv",
}  # fmt: skip
BYTES_OF = {
    "double": 8, "long": 8, "long int": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2,
    "char": 1, "signed char": 1, "byte": 1, "unsigned char": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of what a GPU does
_OF_NCCL = re.compile("ncclKernel|ncclDevKernel|rccl|mscclKernel", re.IGNORECASE)  # before and since 2.19, and AMD's


@dataclass(frozen=True)
class TracedCollective:
    """A collective of one rank: a kernel of NCCL, or a span of gloo. kind: one of KINDS, or other. n_bytes: bytes of
    the larger of input and output, None: not in the trace. ranks: members of its group, None: not in the trace.
    begin_s, end_s: seconds on the rank's clock. launched_s: moment of its call, None: not in the trace."""

    kind: str
    n_bytes: float | None
    ranks: tuple[int, ...] | None
    begin_s: float
    end_s: float
    launched_s: float | None = None

    @property
    def seconds(self) -> float:
        """Return its duration."""
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class CollectiveCall:
    """The call of a collective on the CPU. elements: numbers in its tensors, None: not in the trace."""

    kind: str
    elements: int | None
    n_bytes: float | None
    begin_s: float
    end_s: float


@dataclass
class Recording:
    """The events of a trace that say where the time goes. Times are seconds since an origin of the trace.

    distributed: the trace's `distributedInfo`. base_s: origin of the times, in seconds since 1970. steps: number,
    begin and end. operators: begins and ends in turn, by thread. kernels: begins and ends without collectives.
    kernel_numbers: correlation of each kernel with its launch. launch_numbers, launch_times: correlation and
    moment of each launch. spans: collectives with
    the number of their elements and their correlation. gloo_threads: threads that work for gloo. trains: whether there
    is a backward pass."""

    distributed: Mapping[str, Any] = field(default_factory=dict)
    host: str | None = None
    base_s: float = 0.0
    steps: list[tuple[int, float, float]] = field(default_factory=list)
    operators: dict[str, array[float]] = field(default_factory=dict)
    kernels: array[float] = field(default_factory=lambda: array("d"))
    kernel_numbers: array[int] = field(default_factory=lambda: array("q"))
    launch_numbers: array[int] = field(default_factory=lambda: array("q"))
    launch_times: array[float] = field(default_factory=lambda: array("d"))
    spans: list[tuple[TracedCollective, int | None, int | None]] = field(default_factory=list)
    calls: list[CollectiveCall] = field(default_factory=list)
    gloo_threads: set[str] = field(default_factory=set)
    trains: bool = False

    def add_value(self, key: str, value: Any) -> None:
        """Add a value from outside of the events."""
        if key == "distributedInfo" and isinstance(value, dict):
            self.distributed = value
        elif key == "host_name" and isinstance(value, str):
            self.host = value
        elif key == "baseTimeNanoseconds" and isinstance(value, int) and abs(value) < 2**63:
            self.base_s = value * 1e-9

    def add(self, event: Mapping[str, Any]) -> None:
        """Add an event. Raises TraceError for times that are none."""
        if event.get("ph") != "X":
            return
        category, name = str(event.get("cat")).lower(), str(event.get("name"))
        given = event.get("args")
        args: Mapping[str, Any] = given if isinstance(given, dict) else {}
        if category in _DEVICE:
            self._add_kernel(name, category, event, args)
        elif category == "cpu_op":
            self._add_operator(name, event, args)
        elif category == "user_annotation":  # gpu_user_annotation has the same spans once more
            self._add_annotation(name, event, args)
        elif "Launch" in name and category.endswith(("runtime", "driver")) and "correlation" in args:
            self.launch_numbers.append(whole_number(args["correlation"]) or 0)
            self.launch_times.append(times_of(event)[0])

    def _add_kernel(self, name: str, category: str, event: Mapping[str, Any], args: Mapping[str, Any]) -> None:
        begin_s, end_s = times_of(event)
        number = whole_number(args.get("correlation"))
        if category == "kernel" and _OF_NCCL.search(name):
            elements = max((whole_number(args.get(f"{way} msg nelems")) or 0 for way in ("In", "Out")), default=0)
            kind = kind_of(str(args.get("Collective name", "")), kind_of(name))
            n_bytes = bytes_of(elements, args.get("dtype")) if "In msg nelems" in args else None
            ranks = self._ranks(args)
            self.spans.append((TracedCollective(kind, n_bytes, ranks, begin_s, end_s), elements or None, number))
        else:
            self.kernels.extend((begin_s, end_s))
            self.kernel_numbers.append(-1 if number is None else number)

    def _add_operator(self, name: str, event: Mapping[str, Any], args: Mapping[str, Any]) -> None:
        self.trains = self.trains or "Backward" in name
        begin_s, end_s = times_of(event)
        if name.startswith("c10d::"):
            elements, n_bytes = _inputs(args)
            self.calls.append(CollectiveCall(kind_of(name), elements, n_bytes, begin_s, end_s))
        elif name != "record_param_comms":
            times = self.operators.setdefault(str(event.get("tid")), array("d"))
            if not times or not times[-2] <= begin_s <= end_s <= times[-1]:  # operators inside others add nothing
                times.extend((begin_s, end_s))

    def _add_annotation(self, name: str, event: Mapping[str, Any], args: Mapping[str, Any]) -> None:
        if name.startswith(STEP) and (number := name.removeprefix(STEP)).isdecimal() and len(number) < 10:
            if len(self.steps) == MOST_STEPS:
                raise TraceError(f"it must have at most {MOST_STEPS} steps")
            self.steps.append((int(number), *times_of(event)))
        elif name.startswith(("gloo:", "nccl:")):
            begin_s, end_s = times_of(event)
            elements, n_bytes = _inputs(args)
            if name.startswith("nccl:"):
                self.calls.append(CollectiveCall(kind_of(name), elements, n_bytes, begin_s, end_s))
                return
            self.gloo_threads.add(str(event.get("tid")))
            kind, ranks = kind_of(name), self._ranks(args)
            n_bytes = of_whole(kind, n_bytes, ranks)
            self.spans.append((TracedCollective(kind, n_bytes, ranks, begin_s, end_s), elements, None))

    def _ranks(self, args: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Return the members of a collective's group; `distributedInfo` comes before the events."""
        world = whole_number(self.distributed.get("world_size")) or 0
        if (ranks := listed_ranks(str(args.get("Process Group Ranks")), world)) is not None:
            return ranks
        if whole_number(args.get("Group size")) == world > 0:
            return everyone(world)
        groups = [group for group in _listed(self.distributed.get("pg_config")) if isinstance(group, dict)]
        name = args.get("Process Group Name")
        named = groups if name is None else [group for group in groups if group.get("pg_name") == name]
        return _members(named[0].get("ranks"), world) if len(named) == 1 else None


def read_recording(path: str, progress: Callable[[int], None] = lambda _: None) -> Recording:
    """Read a trace in one pass. progress: called with the bytes that are read. Raises TraceError, without the path."""
    recording = Recording()
    for event in read_events(path, recording.add_value, progress):
        recording.add(event)
    return recording


def times_of(event: Mapping[str, Any]) -> tuple[float, float]:
    """Return begin and end of an event in seconds. Raises TraceError if they are no times."""
    begin, duration = _number(event.get("ts")), _number(event.get("dur", 0))
    if begin is None or duration is None or duration < 0:
        shown = " and ".join(repr(event.get(key))[:20] for key in ("ts", "dur"))
        raise TraceError(f"the event {str(event.get('name'))[:40]!r} must have ts and dur in microseconds, got {shown}")
    return begin * 1e-6, (begin + duration) * 1e-6


def whole_number(value: Any) -> int | None:
    """Return a whole number >= 0, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def kind_of(name: str, otherwise: str = "other") -> str:
    """Return the kind of collective that a name has in it, as in ncclDevKernel_AllReduce_Sum_f32_RING_LL."""
    letters = re.sub("[^a-z]", "", name.partition("(")[0].lower())
    return next((kind for spelled, kind in KINDS.items() if spelled in letters), otherwise)


def bytes_of(elements: int, dtype: Any) -> float | None:
    """Return the bytes of a number of values, None for an unknown dtype."""
    size = BYTES_OF.get(str(dtype).lower().removeprefix("c10::"))
    return None if size is None or elements * size > MOST_BYTES else float(elements * size)


def of_whole(kind: str, input_bytes: float | None, ranks: Sequence[int] | None) -> float | None:
    """Return the bytes of a collective's larger side, which an all-gather makes of its inputs; None if unknown."""
    if kind != "all_gather" or input_bytes is None:
        return input_bytes
    return None if ranks is None else len(ranks) * input_bytes


def _inputs(args: Mapping[str, Any]) -> tuple[int | None, float | None]:
    """Return the number of elements of a call's tensors, and their bytes, None where it is not in the trace."""
    shapes, types = _listed(args.get("Input Dims")), _listed(args.get("Input type"))
    tensors = [shape for shape in shapes if _listed(shape)]
    if not tensors:
        return None, None
    elements = [elements_of(shape) for shape in tensors]
    dtypes = [dtype for shape, dtype in zip(shapes, types, strict=False) if _listed(shape)]
    sizes = [bytes_of(number, dtype) for number, dtype in zip(elements, dtypes, strict=False)]
    known = [size for size in sizes if size is not None]
    return sum(elements), sum(known) if len(known) == len(tensors) else None


def elements_of(shape: Any, depth: int = 2) -> int:
    """Return the number of elements of a tensor, or of a list of tensors. Wrong shapes have none."""
    if depth and any(isinstance(each, list) for each in shape):
        return sum(elements_of(each, depth - 1) for each in shape if isinstance(each, list) and each)
    sizes = [size if (size := whole_number(each)) is not None else 0 for each in shape[:16]]
    return math.prod(sizes) if all(size < 2**53 for size in sizes) else 0


@lru_cache(4)
def everyone(world: int) -> tuple[int, ...] | None:
    """Return all ranks, None for a world that is too large."""
    return tuple(range(world)) if world <= MOST_RANKS else None


@lru_cache(1024)  # the texts of a trace repeat
def listed_ranks(text: str, world: int) -> tuple[int, ...] | None:
    """Return the ranks of a JSON list, None if it is none of ranks below the world's size."""
    try:
        return _members(json.loads(text), world)
    except (ValueError, RecursionError):  # long lists are shortened, with dots
        return None


def _members(ranks: Any, world: int) -> tuple[int, ...] | None:
    numbers = [whole_number(rank) for rank in _listed(ranks)[:MOST_RANKS]]
    known = [number for number in numbers if number is not None and number < world]
    return tuple(sorted(set(known))) if known and len(known) == len(numbers) else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    """Return a number of microseconds, None for anything else."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST_US
    return float(value) if good else None
