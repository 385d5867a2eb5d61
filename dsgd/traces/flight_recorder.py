"""Read a dump of torch's flight recorder: the sizes and the cadence of a job's collectives, without their durations.

The format is that of PyTorch's `FlightRecorder.hpp`: a pickle of built-in containers (TORCH_FR_BUFFER_SIZE,
TORCH_NCCL_TRACE_BUFFER_SIZE before)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dsgd.host.files import TEXT_BYTES, regular_file
from dsgd.host.foreign_pickles import unpickled
from dsgd.traces.json_stream import PICKLE, TraceError
from dsgd.traces.kineto import MOST_RANKS, bytes_of, elements_of, kind_of, listed_ranks, whole_number

MOST_ENTRIES, MOST_TENSORS, MOST_DIMENSIONS = 20_000, 256, 16  # of a dump, of a collective, of a tensor


@dataclass(frozen=True)
class RecordedKind:
    """The collectives of one kind, size and group in a dump.

    n_bytes: bytes of the larger of input and output, None: not in the dump. ranks: number of the group's members,
    likewise. every_s: mean time between two of them, None: one."""

    kind: str
    n_bytes: float | None
    ranks: int | None
    count: int
    every_s: float | None


def is_dump(path: str) -> bool:
    """Return whether a file begins as a pickle does; False for what is no file."""
    try:
        with regular_file(path) as (file, _):
            return file.read(1) == PICKLE
    except OSError:
        return False


def read_dump(path: str) -> list[RecordedKind]:
    """Read the dump of one rank, in the order of the first collective of each kind. Raises TraceError."""
    try:
        with regular_file(path) as (file, size):
            if size > TEXT_BYTES:
                raise TraceError(f"{path}: it must have at most {TEXT_BYTES} bytes, got {size}")
            dump = unpickled(file.read(size), {})
    except TraceError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise TraceError(f"{path}: it must be a dump of torch's flight recorder: {reason[:200]}") from None
    entries = dump.get("entries") if isinstance(dump, dict) else None
    if not isinstance(entries, list) or not entries or len(entries) > MOST_ENTRIES:
        raise TraceError(f"{path}: it must be a dump of torch's flight recorder, with 1 to {MOST_ENTRIES} entries")
    groups = dump.get("pg_config")
    created_ns: dict[tuple[str, float | None, int | None], list[int]] = defaultdict(list)
    for entry in entries:
        moment = whole_number(entry.get("time_created_ns")) if isinstance(entry, dict) else None
        if moment is None:
            raise TraceError(f"{path}: each of its entries must have time_created_ns")
        sides = (_bytes_of_side(entry, side) for side in ("input", "output"))
        n_bytes = max((side for side in sides if side is not None), default=None)
        kind = kind_of(_text(entry.get("profiling_name")))
        created_ns[kind, n_bytes, _members(entry, groups)].append(moment)
    return [
        RecordedKind(*key, len(times), (max(times) - min(times)) * 1e-9 / (len(times) - 1) if len(times) > 1 else None)
        for key, times in created_ns.items()
    ]


def _bytes_of_side(entry: Mapping[str, Any], side: str) -> float | None:
    """Return the bytes of all tensors of a side, None if they are unknown."""
    shapes, dtypes = entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")
    if not isinstance(shapes, list) or not isinstance(dtypes, list) or not 0 < len(shapes) <= MOST_TENSORS:
        return None
    pairs = zip(shapes, dtypes, strict=False)
    sizes = [bytes_of(elements_of(shape), _text(dtype)) for shape, dtype in pairs if _is_flat(shape)]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(shapes) else None


def _members(entry: Mapping[str, Any], groups: Any) -> int | None:
    """Return the number of ranks in a collective's group, None if it is unknown."""
    name = entry.get("process_group")
    name = name[0] if isinstance(name, list | tuple) and name else name
    # gloo's group of all ranks has no name
    group = groups.get(name, groups.get("")) if isinstance(groups, dict) and isinstance(name, str) else None
    ranks = listed_ranks(_text(group.get("ranks")), MOST_RANKS) if isinstance(group, dict) else None
    return None if ranks is None else len(ranks)


def _is_flat(shape: Any) -> bool:
    return (
        isinstance(shape, list) and len(shape) <= MOST_DIMENSIONS and not any(isinstance(each, list) for each in shape)
    )


def _text(value: Any) -> str:
    """Return a text, empty for anything else: lists that contain one list many times would become endless texts."""
    return value if isinstance(value, str) else ""
