"""A record of the most marks: it can be read in little memory, and nothing is written that could not be read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dsgd.cli.compose import composed
from dsgd.record import reader, writer
from dsgd.record.reader import read_marks
from dsgd.record.writer import METRICS, METRICS_BYTES, MOST_MARKS, Record
from dsgd.runner.plan import plan_run
from tests.support.records import write_record


def test_a_run_writes_no_line_that_its_reader_would_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reader, writer):
        monkeypatch.setattr(module, "METRICS_BYTES", 200)
    record = Record(tmp_path, {"nodes": 2}, ["cpu"])
    with pytest.raises(OSError, match=r"no more than 200 bytes of metrics\.jsonl can be read"):
        all(record.mark({"samples": i}) for i in range(100))
    record.finish({})
    assert len(read_marks(tmp_path)) == len((tmp_path / METRICS).read_bytes().splitlines()) > 3
    resumed = Record(tmp_path, {"nodes": 2}, ["cpu"], before=tmp_path, lines=2)
    assert resumed.mark({"samples": 2})["samples"] == 2
    resumed.finish({})


def test_a_plan_of_more_marks_than_a_record_has_room_for_is_warned_of() -> None:
    line = ["experiment=quadratic", "nodes=2"]
    few, many = ([*line, "eval.every_steps=1", f"budget.steps={n}"] for n in (MOST_MARKS // 2, MOST_MARKS + 1))
    by_time = [*line, "eval.every_time_s=0.01", "budget.steps=null", f"budget.time_s={MOST_MARKS // 100 + 1}"]
    for options, warned in ((few, False), (many, True), (by_time, True)):
        why = plan_run(composed(options), []).why
        assert (f"metrics.jsonl has room for about {MOST_MARKS:,}" in why) == warned, why


MEMORY = """
import resource, sys
from pathlib import Path
from dsgd.record.reader import read_marks
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
marks = read_marks(Path(sys.argv[1]))
print(len(marks), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_reading_takes_little_more_than_twice_the_bytes_of_the_file(tmp_path: Path) -> None:
    metrics = write_record(tmp_path / "run", marks=1) / METRICS
    line = metrics.read_bytes()
    times = 2**25 // len(line)
    metrics.write_bytes(line * times)
    command = [sys.executable, "-c", MEMORY, str(metrics.parent)]
    marks, nbytes = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert marks == times
    assert nbytes < 3 * 2**25


SMALL = """
import resource, sys
from pathlib import Path
from dsgd.record.safe_files import read_bounded, read_end
from dsgd.host.files import text_lines
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 2**24, taken + 2**24))
path = Path(sys.argv[1])
assert read_bounded(path, 2**40) == read_end(path, 2**40) == b"x"
assert text_lines(str(path), "key") == ["x"]
"""


def test_reading_a_small_file_takes_its_size_and_not_its_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    subprocess.run([sys.executable, "-c", SMALL, str(tmp_path / "file")], check=True)
    assert METRICS_BYTES > 2**24
