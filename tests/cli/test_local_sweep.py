"""The jobs of a sweep, several at a time on this machine: the same records, whatever becomes of the others."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.command import PATIENCE_S, call, lines, shell, start, summary, wait_until
from tests.support.proc import processes

SMALL = "nodes=2 budget.steps=20 eval.every_steps=5"
ENDLESS = "experiment=quadratic nodes=2 budget.steps=10000000 eval.every_steps=50"


def without_host_time(metrics: Path) -> bytes:
    return re.sub(rb'"wall_s": [0-9.e+-]+,? ?', b"", metrics.read_bytes())


def test_the_records_are_those_of_one_job_after_the_other(tmp_path: Path) -> None:
    line = f"dsgd-run -m {SMALL} algo=sync,gossip seed=0,1"
    for name, jobs in (("one", 1), ("two", 2)):
        result = shell(f"{line} sweep.jobs={jobs} hydra.sweep.dir={name}", tmp_path)
        assert result.returncode == 0, result.stderr
    folders = sorted(path.name for path in (tmp_path / "one").iterdir() if path.is_dir())
    assert len(folders) == 4
    for folder in folders:
        one, two = tmp_path / "one" / folder, tmp_path / "two" / folder
        assert (one / "config.yaml").read_bytes() == (two / "config.yaml").read_bytes()
        assert without_host_time(one / "metrics.jsonl") == without_host_time(two / "metrics.jsonl")
        assert summary(one) == summary(two)
        assert summary(one)["threads"] == 1


def test_every_job_is_shown_when_it_ends_and_what_all_print_once(tmp_path: Path) -> None:
    result = shell(f"dsgd-run -m {SMALL} algo=sync,gossip optimizer.lr=0.1,0.2 sweep.jobs=2", tmp_path)
    assert result.returncode == 0, result.stderr
    shown = [text for text in result.stderr.splitlines() if text.startswith("[")]
    wanted = ["[1/4] sync lr=0.1", "[2/4] sync lr=0.2", "[3/4] gossip lr=0.1", "[4/4] gossip lr=0.2"]
    assert [text for text in shown if ":" not in text] == wanted
    ended = sorted(text for text in shown if ":" in text)
    assert [re.sub(r": completed, \d+ s$", "", text) for text in ended] == wanted
    assert all(shown.index(name) < shown.index(text) for name, text in zip(wanted, ended, strict=True))
    assert result.stderr.count("engine: sim") == 1
    assert [text.rpartition("/")[2] for text in result.stdout.splitlines() if text.startswith("record: ")] == [
        "0_sync_2", "1_sync_2", "2_gossip_2", "3_gossip_2",
    ]  # fmt: skip


def job_of(sweep: int, folder: Path) -> int:
    """Return the process of a sweep's job: the child of the command that has this record open."""
    for process in processes():
        if process.parent == sweep:
            names = {
                os.path.realpath(f"/proc/{process.pid}/fd/{name}") for name in os.listdir(f"/proc/{process.pid}/fd")
            }
            if any(name.startswith(f"{folder}/") for name in names):
                return process.pid
    raise AssertionError(f"no process writes in {folder}")


def test_a_killed_job_ends_no_other_and_is_named(tmp_path: Path) -> None:
    process = start(f"dsgd-run -m {ENDLESS} seed=0,1 sweep.jobs=2 hydra.sweep.dir=swept", tmp_path)
    first, second = tmp_path / "swept" / "0_sync_2", tmp_path / "swept" / "1_sync_2"
    wait_until(lambda: lines(first) >= 2 and lines(second) >= 2, process)
    os.kill(job_of(process.pid, first), signal.SIGKILL)
    before = lines(second)
    wait_until(lambda: lines(second) > before + 1, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, err
    assert "[1/2] sync seed=0: killed by SIGKILL" in err
    assert "[2/2] sync seed=1: interrupted" in err
    assert summary(second)["status"] == "interrupted"
    assert "Traceback" not in out + err


def test_ctrl_c_ends_all_jobs_and_the_same_line_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    """The first job has come to its end, two are in their midst, the last has not begun."""
    steps = "budget.steps=5,3000,3001,6 eval.every_steps=1"
    line = f"dsgd-run -m experiment=quadratic nodes=2 {steps} sweep.jobs=2 resume=auto hydra.sweep.dir=swept"
    folders = [tmp_path / "swept" / f"{number}_sync_2" for number in range(4)]
    process = start(line, tmp_path)
    wait_until(lambda: lines(folders[1]) >= 2 and lines(folders[2]) >= 2, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert [summary(folder)["status"] for folder in folders[:3]] == ["completed", "interrupted", "interrupted"]
    assert all((folder / "checkpoint.pt").exists() for folder in folders[1:3])
    assert not folders[3].exists()
    ended = (folders[0] / "summary.json").read_bytes()

    again = shell(line, tmp_path)
    assert again.returncode == 0, again.stderr
    assert [summary(folder)["status"] for folder in folders] == ["completed"] * 4
    assert (folders[0] / "summary.json").read_bytes() == ended
    assert "[1/4] sync steps=5: completed before" in again.stderr
    for folder, count in zip(folders, (5, 3000, 3001, 6), strict=True):
        found = [json.loads(text)["samples"] for text in (folder / "metrics.jsonl").read_text().splitlines()]
        assert found == [2 * step for step in range(count + 1)]


def test_without_resume_a_record_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = ("-m", "experiment=quadratic", "nodes=2,3", "budget.steps=3", "hydra.sweep.dir=swept")
    assert call(*line).status == 0
    refused = call(*line)
    assert refused.status == 2
    assert refused.err.endswith("resume=auto goes on with what is missing\n")
    assert call(*line, "resume=auto").status == 0


@pytest.mark.parametrize("jobs", ["0", "-1", "1.5", "many", "true", "null"])
def test_a_number_of_jobs_that_is_none(jobs: str) -> None:
    result = call("-m", "nodes=2,3", f"sweep.jobs={jobs}")
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("sweep.jobs must be auto or a number >= 1, got ")
    assert len(result.err.splitlines()) == 1
