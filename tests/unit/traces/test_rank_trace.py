"""The times of a rank's steps are those that a trace was made of, whichever library and version made it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsgd.traces.json_stream import TraceError
from dsgd.traces.kineto import kind_of
from dsgd.traces.rank_trace import RankTrace, read_rank
from tests.support.each_row import each_row
from tests.support.kineto_files import NAMES, Bucket, Rank, Step, event, write_trace
from tests.support.wrong_json import wrong

# work in 0..40 and 60..100 of 110 ms; the first bucket is hidden in part, the second one is waited for
BUCKETS = [Bucket(1000, 20, 22, 50), Bucket(250, 60, 65, 70), Bucket(4000, 100, 100, 108)]
STEPS = [Step(0, 110, [(0, 40), (60, 100)], BUCKETS), Step(111, 221, [(0, 40), (60, 100)], BUCKETS)]


def read(tmp_path: Path, trace: Any, name: str = "x.pt.trace.json") -> RankTrace:
    return read_rank(str(write_trace(tmp_path / name, trace)))


@each_row("kind, name", [("gloo", "a.json"), *((kind, "a.json.gz") for kind in NAMES)])
def test_a_step_is_split_into_its_times(kind: str, name: str, tmp_path: Path) -> None:
    trace = read(tmp_path, Rank(1, 2, STEPS, kind, host="a").trace(), name)
    assert (trace.rank, trace.world_size, trace.host, trace.on_gpu) == (1, 2, "a", kind != "gloo")
    assert [step.number for step in trace.steps] == [3, 4]
    for step in trace.steps:
        found = [step.computing_s, step.exposed_s, step.hidden_s, step.host_s]
        # a gloo thread is waited for from the call on; a kernel runs from its begin on
        hidden = 40 - 20 + 70 - 60 if kind == "gloo" else 40 - 22 + 70 - 65
        expected = [80, 10 + 8, hidden, 10 + 2]
        assert [1e3 * value for value in found] == pytest.approx(expected, abs=0.01 if kind == "gloo" else 1.1)
        sizes = [(each.kind, each.n_bytes, each.ranks) for each in step.collectives]
        assert sizes == [("all_reduce", size, (0, 1)) for size in (4000.0, 1000.0, 16000.0)]
        assert [1e3 * each.seconds for each in step.collectives] == pytest.approx([28, 5, 8])
        assert all(each.launched_s is not None and each.launched_s <= each.begin_s for each in step.collectives)


def test_a_call_that_ends_after_its_collective_waits_for_no_more_than_that(tmp_path: Path) -> None:
    """A busy core can leave the caller for the thread of gloo, from 49 to 51 ms."""
    step = Step(0, 100, [(0, 40), (60, 100)], [Bucket(1000, 51, 49.5, 50.5)])
    (read_step,) = read(tmp_path, Rank(0, 2, [step]).trace()).steps
    assert 1e3 * read_step.exposed_s == pytest.approx(1)
    assert read_step.hidden_s == pytest.approx(0, abs=1e-9)


def test_a_thread_of_gloo_may_record_its_end_after_the_waiting_one_goes_on(tmp_path: Path) -> None:
    """It ends at 61 ms, and the work behind it begins at 60 ms; the one of 90 ms is hidden, whatever ends there."""
    step = Step(0, 100, [(0, 40), (60, 100)], [Bucket(1000, 40, 40, 61), Bucket(9, 80, 80, 90)])
    (read_step,) = read(tmp_path, Rank(0, 2, [step]).trace()).steps
    assert 1e3 * read_step.exposed_s == pytest.approx(20)
    assert 1e3 * read_step.hidden_s == pytest.approx(1 + 10)
    (on_gpu,) = read(tmp_path, Rank(0, 2, [step], "nccl").trace()).steps  # a stream waits for the end itself
    assert on_gpu.exposed_s == pytest.approx(0, abs=1e-4)


def test_a_gpu_that_is_late_has_its_own_steps(tmp_path: Path) -> None:
    """The host launches all kernels of a step in its first millisecond, and the GPU begins them 300 ms later."""
    late = [
        Step(110 * k, 110 * (k + 1), [(300 + begin, 300 + end) for begin, end in ((0, 40), (60, 100))],
             [Bucket(1000, 5, 400, 408)])
        for k in range(4)
    ]  # fmt: skip
    trace = read(tmp_path, Rank(0, 2, late, "nccl").trace())
    for step in trace.steps[:3]:
        assert 1e3 * step.seconds == pytest.approx(110)
        assert 1e3 * step.computing_s == pytest.approx(80)
        assert 1e3 * step.exposed_s == pytest.approx(8)
        assert len(step.collectives) == 1


def test_a_kernel_that_was_launched_before_the_recording_is_of_no_step(tmp_path: Path) -> None:
    """A GPU that is late still ends the step before; such kernels have no sizes."""
    late = [Step(110 * k, 110 * (k + 1), [(300, 340), (360, 400)], [Bucket(1000, 5, 400, 408)]) for k in range(3)]
    trace = Rank(0, 2, late, "rccl").trace()
    before = read(tmp_path, trace)
    earlier = event(NAMES["rccl"], "kernel", trace["traceEvents"][0]["ts"] + 20, 8000, 20, correlation=7)
    assert read(tmp_path, trace | {"traceEvents": [earlier, *trace["traceEvents"]]}).steps == before.steps


def test_copies_of_spans_count_once(tmp_path: Path) -> None:
    """gpu_user_annotation repeats user_annotation, operators lie inside others."""
    trace = Rank(0, 2, STEPS, "nccl").trace()
    before = read(tmp_path, trace)
    copies = [each | {"cat": "gpu_user_annotation"} for each in trace["traceEvents"] if "#" in each["name"]]
    inner = [event("aten::add", "cpu_op", each["ts"] + 1, 2) for each in trace["traceEvents"]]
    again = read(tmp_path, trace | {"traceEvents": [*trace["traceEvents"], *copies, *inner]})
    assert again.steps == before.steps


def test_shortened_lists_of_ranks_are_all_ranks_or_unknown(tmp_path: Path) -> None:
    rank = Rank(0, 128, [Step(0, 10, [(0, 5)], [Bucket(10, 5, 5, 9)])], "nccl")
    trace = rank.trace()
    args = next(each["args"] for each in trace["traceEvents"] if "nccl" in each["name"] and each["cat"] == "kernel")
    args["Process Group Ranks"] = "[0, 1, 2, ...]"
    assert read(tmp_path, trace).steps[0].collectives[0].ranks == tuple(range(128))
    args["Group size"] = 64
    trace["distributedInfo"]["pg_config"] *= 2
    assert read(tmp_path, trace).steps[0].collectives[0].ranks is None


@each_row(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclDevComm*)", "reduce_scatter"),
        ("_allgather_base", "all_gather"),
        ("nccl:all_to_all", "all_to_all"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("gloo:broadcast", "broadcast"),
        ("c10d::reduce_", "reduce"),
        ("ncclDevKernel_Generic_4(void)", "other"),
    ],
)  # fmt: skip
def test_kinds_are_read_off_names(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def changed(rank: Rank, **values: Any) -> dict[str, Any]:
    return {key: value for key, value in (rank.trace() | values).items() if value is not None}


RANK = Rank(0, 2, STEPS)
EVENTS = RANK.trace()["traceEvents"]


@each_row(
    ("trace", "rule"),
    [
        (changed(RANK, traceEvents=[]), "it has no steps (ProfilerStep#n): call profiler.step() after each step"),
        (changed(RANK, distributedInfo=None), "it has no distributedInfo with rank and world_size: call init_process"),
        (changed(RANK, distributedInfo={"rank": 2, "world_size": 2}), "it has no distributedInfo with rank"),
        (changed(RANK, distributedInfo={"rank": 2, "world_size": 10**12}), "it has no distributedInfo with rank"),
        (changed(RANK, traceEvents=[each for each in EVENTS if "Backward" not in each["name"]]), "it has no backward"),
        (Rank(0, 2, [replace(STEPS[0], end_ms=150), STEPS[1]]).trace(), "its steps must follow one another, got"),
        (changed(RANK, traceEvents=[*EVENTS, *EVENTS]), "its steps must follow"),
        (changed(RANK, traceEvents=[*EVENTS, event("aten::mm", "cpu_op", 1, -1)]), "the event 'aten::mm' must have ts"),
        (
            changed(RANK, traceEvents=[each for each in EVENTS if not each["name"].startswith("gloo:")]),
            "it has no collectives, only their calls: profile with ProfilerActivity.CUDA",
        ),
    ],
)  # fmt: skip
def test_traces_that_say_too_little_are_refused(trace: Any, rule: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError) as error:
        read(tmp_path, trace)
    assert rule in str(error.value)


@pytest.mark.parametrize("kind", ["gloo", "nccl"])
def test_wrong_values_anywhere_end_in_one_error_or_in_a_trace(kind: str, tmp_path: Path) -> None:
    trace = Rank(0, 2, [Step(0, 11, [(0, 4)], [Bucket(10, 5, 5, 9)])], kind).trace()
    path = tmp_path / "x.json"
    errors: list[str] = []
    texts = [*wrong(trace)]
    for text in texts:
        path.write_text(text)
        try:
            read_rank(str(path))
        except TraceError as error:
            errors.append(str(error))
    assert 0 < len(errors) < len(texts)
    assert [text for text in errors if len(text.splitlines()) != 1] == []
