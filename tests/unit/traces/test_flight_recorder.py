"""Dumps of torch's flight recorder: sizes and cadence are those that were written, and nothing in them runs."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from dsgd.cli.calibrate import main
from dsgd.traces.flight_recorder import RecordedKind, read_dump
from dsgd.traces.json_stream import TraceError
from dsgd.traces.traced_job import read_job
from tests.support.each_row import each_row


def entry(name: str, ms: float, sizes: list[list[int]], group: str = "0", **more: Any) -> dict[str, Any]:
    shapes = {f"{side}_{what}": value for side in ("input", "output") for what, value in
              (("sizes", sizes), ("dtypes", ["Float"] * len(sizes)))}  # fmt: skip
    times = {"time_created_ns": int(1e18 + ms * 1e6), "time_discovered_completed_ns": 0}
    return {"profiling_name": name, "process_group": (group, "default_pg"), **shapes, **times, **more}


def dump(entries: Any) -> dict[str, Any]:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    return {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": entries}


def written(folder: Path, value: Any) -> str:
    path = folder / "nccl_trace_rank_0"
    path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, 2))
    return str(path)


STEPS = [entry("nccl:all_reduce", 200 * k + begin, [[1000, 250]]) for k in range(5) for begin in (0, 50)]
ENTRIES = [
    *STEPS,
    entry("gloo:_all_gather_base", 900, [[8]], output_sizes=[[32]]),
    entry("nccl:all_reduce_barrier", 950, [[2], [3, 1]], "7", input_dtypes=["Float", "no such"], output_dtypes=[]),
]


def test_sizes_groups_and_cadence_are_read(tmp_path: Path) -> None:
    assert read_dump(written(tmp_path, dump(ENTRIES))) == [
        RecordedKind("all_reduce", 1e6, 4, 10, 850_000_000 * 1e-9 / 9),
        RecordedKind("all_gather", 128.0, 4, 1, None),
        RecordedKind("all_reduce", None, None, 1, None),
    ]


class Hostile:
    def __reduce__(self) -> Any:
        return os.mkdir, ("run",)


@each_row(
    ("value", "rule"),
    [
        (dump([Hostile()]), "a dump of torch's flight recorder: it asks for posix.mkdir, which is not allowed"),
        (pickle.dumps(dump(ENTRIES), 2)[:-90], "it must be a dump of torch's flight recorder: "),
        (b"\x80\x02r\xff\xff\xff\x7f.", "it asks for LONG_BINPUT, which is not allowed"),
        (dump({}), "with 1 to 20000 entries"),
        (dump([]), "with 1 to 20000 entries"),
        ([1], "with 1 to 20000 entries"),
        (dump(["x"]), "each of its entries must have time_created_ns"),
        (dump([{"time_created_ns": -1}]), "each of its entries must have time_created_ns"),
    ],
)  # fmt: skip
def test_other_pickles_end_in_one_line(
    value: Any, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With nothing run, and nothing written."""
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, value)
    assert main(["--from-trace", path, "--out", "mine.yaml"]) == 2
    printed = capsys.readouterr()
    assert rule in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")
    assert [file.name for file in tmp_path.iterdir()] == ["nccl_trace_rank_0"]


@each_row(
    "more",
    [{"input_sizes": 3}, {"input_sizes": [[-1]], "output_sizes": [[[[1]]]]}, {"process_group": None}, {"pg": {}}],
)
def test_wrong_values_of_an_entry_are_unknown(more: dict[str, Any], tmp_path: Path) -> None:
    (kind,) = read_dump(written(tmp_path, dump([entry("nccl:broadcast", 0, [[1]], **more)])))
    assert (kind.kind, kind.count) == ("broadcast", 1)


@pytest.mark.parametrize("key", ["entries", "profiling_name", "input_dtypes", "output_sizes", "process_group"])
def test_lists_that_contain_one_list_many_times_are_not_unfolded(key: str, tmp_path: Path) -> None:
    """As a text the value would have 2**60 brackets."""
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    if key == "entries":
        with pytest.raises(TraceError, match="must have time_created_ns"):
            read_dump(written(tmp_path, dump(value)))
    else:
        assert len(read_dump(written(tmp_path, dump([entry("nccl:broadcast", 0, [[1]]) | {key: value}])))) == 1


def test_a_dump_is_printed_and_describes_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, dump(ENTRIES))
    assert main(["--from-trace", path, "--out", "mine.yaml"]) == 2
    printed = capsys.readouterr()
    assert ["all_reduce", "4", "1", "MB", "10", "94.44"] in [line.split() for line in printed.out.splitlines()]
    assert printed.err.count("\n") == 1
    assert (
        "it is a pickle, as the flight recorder dumps it, without durations: trace with torch.profiler" in printed.err
    )
    assert not (tmp_path / "mine.yaml").exists()
    with pytest.raises(TraceError, match="it is a pickle"):
        read_job(path)
