"""The summary table on the terminal, as CSV and as Markdown, and in sentences."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

from dsgd.record.reader import Run, find_runs
from dsgd.report.fields import field_value, mark_value, target_crossing, time_to_target_s
from dsgd.report.table import by_time, caption, summary_sentences, summary_table
from dsgd.report.table_layout import shown
from tests.support.records import reach, rewrite, write_record


def table_runs(top: Path) -> list[Run]:
    times: dict[str, float | None] = {"sync": 12345.6, "easgd": None, "gossip": 7.0}
    for algo, seconds in times.items():
        folder = write_record(top / algo, algo, status="diverged" if algo == "easgd" else "completed")
        summary = {
            "time_to_target_s": seconds, "time_s": 20000.0, "bytes_sent_total": 1_234_567_890, "test_loss": 0.123456,
            "test_accuracy": 0.9, "idle_fraction_mean": 0.0, "idle_fraction_max": 0.05, "samples": 28021,
            "epochs": 12.0,
        }  # fmt: skip
        reach(folder, seconds)
        rewrite(folder, {}, summary | ({"test_loss": None} if algo == "easgd" else {}))
    write_record(top / "timing", "dpsgd", timing_only=True, target=None)
    return find_runs([top])


def test_the_table_holds_the_record_soonest_first(tmp_path: Path):
    """By time to target, then never, then without target; four digits, GB of 1e9 bytes, idle in per cent."""
    summary_table(table_runs(tmp_path / "runs")).write(tmp_path / "summary")
    lines = (tmp_path / "summary.md").read_text().splitlines()
    heading = "| run | time to target (s) | status | test accuracy | test loss | time (s) | idle mean (%) | sent (GB) |"
    assert lines[0].startswith(heading + " epochs | samples | idle max (%) |")
    numbers = "{} | {} | 0.9000 | {} | 20000 | 0 | 1.235 | 12.00 | 28021 | 5.000 |"
    assert lines[2].startswith("| gossip, target=0.9 | " + numbers.format("7.000", "completed", "0.1235"))
    assert lines[3].startswith("| sync, target=0.9 | " + numbers.format("12346", "completed", "0.1235"))
    assert lines[4].startswith("| easgd, target=0.9 | " + numbers.format("never", "diverged", "-"))
    assert lines[5].startswith("| dpsgd, target=none | - | completed | - | - | ")
    assert lines[-1].startswith(">: at least so much")
    assert lines[-3].startswith(
        "times: virtual time; target: test accuracy 0.9, reached for good, interpolated between"
    )


def test_a_target_that_was_missed_is_at_least_the_end_of_the_run_and_one_that_diverged_never_comes(tmp_path: Path):
    missed = find_runs([write_record(tmp_path / "a", "sync", target=1.0)])
    ((_, cell, *_),) = summary_table(missed).cells
    assert cell == f"> {shown(missed[0].final('time_s'))}"
    diverged = find_runs([write_record(tmp_path / "b", "sync", target=1.0, status="diverged")])
    ((_, cell, *_),) = summary_table(diverged).cells
    assert cell == "never"


def test_a_target_of_the_loss_has_its_times_and_its_resolution_too(tmp_path: Path):
    """In both files, and in the caption beside a target of the accuracy."""
    losses = {"sync": 0.3, "gossip": 0.1}
    runs = [write_record(tmp_path / "runs" / algo, algo, target_loss=level) for algo, level in losses.items()]
    summary_table(find_runs(runs)).write(tmp_path / "summary")
    lines = (tmp_path / "summary.md").read_text().splitlines()
    assert lines[0].startswith("| run | time to target (s) | ")
    assert " | first crossing (s) | stable crossing (s) | resolution (s) | " in lines[0]
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| gossip, target.loss=0.1", "| sync, target.loss=0.3"]
    assert lines[-2].startswith("times: virtual time; target: test loss 0.1 or 0.3, reached for good, interpolated")
    for row, run in zip(
        csv.DictReader((tmp_path / "summary.csv").read_text().splitlines()), find_runs(runs[::-1]), strict=True
    ):
        crossing = target_crossing(run)
        assert crossing is not None
        assert (row["target_accuracy"], float(row["target_loss"])) == ("", run.target)
        assert float(row["time_to_target_s"]) == pytest.approx(crossing.time_s)
        assert float(row["target_resolution_s"]) == pytest.approx(crossing.resolution_s)
    other = write_record(tmp_path / "other", "sync")
    assert "target: test accuracy 0.9 or test loss 0.1;" in caption(find_runs([runs[1], other])).replace(
        ", reached", ";"
    )


def test_the_caption_says_whose_test_numbers_are_a_validation_set_s(tmp_path: Path):
    folders = [
        write_record(tmp_path / on, data={"evaluate": on, "validation": 0.1}, **{"algo.tau": tau})
        for tau, on in enumerate(("test", "validation"))
    ]
    note = "test: of training samples held out (data.evaluate=validation)"
    captions = [caption(find_runs(chosen)) for chosen in (folders[:1], folders, folders[1:])]
    assert [note in text for text in captions] == [False, True, True]
    assert ["some runs: " + note in text for text in captions] == [False, True, False]


def test_perplexity_has_a_column_where_the_data_are_text(tmp_path: Path):
    """exp(test loss); the loss of other data is not per token."""
    for data, heading in (("digits", False), ("text", True)):
        folder = write_record(tmp_path / data, "sync", data={"name": data})
        rewrite(folder, {}, {"test_loss": 0.5})
        (run,) = find_runs([folder])
        assert (field_value(run, "perplexity") == pytest.approx(math.exp(0.5))) == heading
        summary_table([run]).write(tmp_path / "summary")
        head = (tmp_path / "summary.md").read_text().splitlines()[0]
        assert (" | test loss | perplexity | " in head) == heading
    assert mark_value({"test_loss": 2.0}, "perplexity") == pytest.approx(math.exp(2))
    assert mark_value({"test_loss": 1e4}, "perplexity") == math.inf
    assert math.isnan(mark_value({"test_loss": None}, "perplexity"))


def test_csv_has_the_records_names_and_unrounded_numbers(tmp_path: Path):
    summary_table(table_runs(tmp_path / "runs")).write(tmp_path / "summary")
    head, first, second, third, _ = (tmp_path / "summary.csv").read_text().splitlines()
    lines = list(csv.DictReader([head, first, second, third]))
    wanted = {
        "status": "completed",
        "clock": "virtual",
        "target_accuracy": "0.9",
        "algo.name": "gossip",
        "samples": "28021",
    }
    wanted |= {"epochs": "12", "test_loss": "0.123456", "time_to_target_s": "7", "bytes_sent_total": "1234567890"}
    assert lines[0] == lines[0] | wanted | {"idle_fraction_mean": "0", "idle_fraction_max": "0.05"}
    assert lines[1]["time_to_target_s"] == "12345.6"
    assert lines[2] == lines[2] | {"status": "diverged", "test_loss": "", "time_to_target_s": "inf"}


def test_a_collapsed_run_is_shown_as_such_and_has_reached_nothing(tmp_path: Path):
    """Even where it had been the soonest at its target before; and no sentence calls it the first."""
    for algo in ("sync", "gossip", "easgd"):
        rewrite(write_record(tmp_path / algo, algo), {}, {"collapsed": algo == "easgd"})
    assert time_to_target_s(replace(find_runs([tmp_path / "easgd"])[0], summary={"status": "completed"}))
    runs = find_runs([tmp_path])
    *others, last = [(one.label, one.runs[0].outcome) for one in by_time(runs)]
    assert last == ("easgd", "collapsed")
    assert sorted(others) == [("gossip", "completed"), ("sync", "completed")]
    summary_table(runs).write(tmp_path / "summary")
    row = (tmp_path / "summary.md").read_text().splitlines()[4]
    assert row.startswith("| easgd | never | collapsed | ")
    sentences = summary_sentences(runs)
    assert sentences[0].startswith(f"{others[0][0]} reaches a test accuracy of 0.9 first")
    assert sentences[1] == "a test accuracy of 0.9 is not reached within the budget by easgd"
    assert "ended worse than it began: easgd (collapsed)" in sentences
    assert not any("did not complete" in sentence for sentence in sentences)
