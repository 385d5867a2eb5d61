"""Reading run records, naming what differs, the summary table, and the figures."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from rich.console import Console

from dsgd.cli.plot import main
from dsgd.record.reader import Run, find_runs
from dsgd.report.curves import curves_figure, mean_curve, time_label, wants_log, x_axis
from dsgd.report.figures import draw, figures, idle_figure, overview
from dsgd.report.labels import label, run_labels, series
from dsgd.report.scaling import scalings, speed_up_figure
from dsgd.report.style import NoData, curve_style, drawing
from dsgd.report.table import by_time, shown, summary_table
from dsgd.report.verdict import verdict

# seconds per step, idle share (mean, most idle), vectors sent per node and step, discrepancy, own options
ALGORITHMS: dict[str, tuple[float, float, float, float, float, dict[str, Any]]] = {
    "sync": (0.31, 0.62, 0.71, 1.75, 0.0, {"overlap": True}),
    "easgd": (0.16, 0.22, 0.30, 0.4, 1.1, {"tau": 4, "alpha": 0.1, "beta": None, "servers": 1}),
    "downpour": (0.19, 0.35, 0.41, 1.0, 2.3, {"n_push": 1, "n_fetch": 1, "servers": 1}),
    "gossip": (0.12, 0.05, 0.11, 1.0, 0.8, {"tau": 1, "mode": "pull"}),
    "dpsgd": (0.22, 0.40, 0.55, 2.0, 0.3, {"gradient": "before"}),
    "delayfree": (0.11, 0.002, 0.004, 0.44, 1.6, {"tau": 8}),
}
VECTOR_BYTES = 4 * 4810


def write_record(folder: Path, algo: str = "gossip", /, **changes: Any) -> Path:
    """Smooth made-up curves in the format of a run record: data for the reader and the drawing, not a result.

    changes: nodes, seed, status, timing_only, quadratic, target, time_model, clock, marks, and anything else as a
    dotted key of the configuration.
    """
    nodes, seed = changes.pop("nodes", 8), changes.pop("seed", 0)
    status, marks = changes.pop("status", "completed"), changes.pop("marks", 40)
    timing_only, quadratic = changes.pop("timing_only", False), changes.pop("quadratic", False)
    target, clock = changes.pop("target", 0.9), changes.pop("clock", "virtual")
    time_model = changes.pop("time_model", None)
    step_s, idle, idle_max, vectors, spread, options = ALGORITHMS[algo]
    config: dict[str, Any] = {
        "algo": {"_target_": f"dsgd.algorithms.{algo}.{algo.capitalize()}", "name": algo, **options},
        "nodes": nodes,
        "batch_size": 16,
        "seed": seed,
        "data": {"_target_": "dsgd.data.digits.Digits", "name": "digits", "seed": seed},
        "model": {"_target_": "dsgd.models.mlp.MLP", "name": "mlp", "hidden": [64]},
        "optimizer": {"lr": 0.1, "momentum": 0.9},
        "cluster": {"gradient_s": 0.1, "bandwidth": 1e7, "latency_s": 1e-3, "slow_nodes": {3: 2.0},
                    "time_model": time_model},
        "target": {"accuracy": target, "stop": False},
        "wandb": {"mode": "offline", "run": folder.name},
    }  # fmt: skip
    for key, value in changes.items():
        *groups, leaf = key.split(".")
        place = config
        for group in groups:
            place = place[group]
        place[leaf] = value
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (folder / "env.json").write_text("{}")
    wiggle = 0.03 * math.sin(seed + 1)
    step_s *= 1 + idle * math.log2(nodes) / 2
    lines, reached = [], None
    for i in range(marks):
        epoch = 0.5 * i
        steps = epoch * 1437 / (16 * nodes)
        loss = 0.03 + 2.27 * math.exp(-epoch / (1.5 + spread)) + wiggle * min(1, epoch)
        accuracy = 0.97 - 0.87 * math.exp(-epoch / (1.2 + spread)) + wiggle * min(1, epoch)
        if status == "diverged" and i > marks // 2:
            loss, accuracy = loss * 10.0 ** (3 * (i - marks // 2)), 0.1
        mark = {
            "time_s": steps * step_s * (1 + wiggle), "clock": clock, "wall_s": 0.02 * i, "samples": int(epoch * 1437),
            "epoch": epoch, "lr": 0.1, "train_loss": None if timing_only else loss,
            "test_loss": None if timing_only else 1.1 * loss,
            "test_accuracy": None if timing_only or quadratic else accuracy,
            "consensus_distance": None if timing_only else spread * math.exp(-epoch / 8) * min(1, epoch) / 2,
            "discrepancy": None if timing_only else spread * math.exp(-epoch / 8) * min(1, epoch),
            "bytes_sent": int(steps * nodes * vectors * VECTOR_BYTES),
            "idle_fraction_mean": idle if i else None, "idle_fraction_max": idle_max if i else None,
        }  # fmt: skip
        if reached is None and target is not None and (mark["test_accuracy"] or 0) >= target:
            reached = mark["time_s"]
        lines.append(json.dumps(mark))
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    if status != "running":
        last = json.loads(lines[-1])
        summary = {name: last[name] for name in last if name not in ("epoch", "bytes_sent", "lr")} | {
            "algo": algo, "nodes": nodes, "status": status, "epochs": last["epoch"], "model": "mlp", "data": "digits",
            "bytes_sent_total": last["bytes_sent"], "time_to_target_s": reached, "target_accuracy": target,
            "seed": seed, "time_model": time_model,
        }  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_all(top: Path, **changes: Any) -> list[Run]:
    return find_runs([write_record(top / algo, algo, **changes) for algo in ALGORITHMS])


def rewrite(folder: Path, change: dict[str, Any], summary: dict[str, Any] | None = None) -> None:
    """Change fields of all marks, and of the summary."""
    marks = [json.loads(line) | change for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(mark) + "\n" for mark in marks))
    written = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(written | (summary or {})))


# --- reading ---------------------------------------------------------------------------------------------------------


def test_runs_below_a_sweep_folder_are_found_in_numeric_order_and_once(tmp_path: Path):
    """Hydra numbers its jobs 0, 1, …, 10; its .hydra folders and what lies inside a run are not runs."""
    for job in (10, 2, 0):
        folder = write_record(tmp_path / "sweep" / str(job), seed=job)
        (folder / ".hydra").mkdir()
        (folder / ".hydra" / "config.yaml").write_text("nodes: 8")
        (folder / "wandb").mkdir()
        (folder / "wandb" / "summary.json").write_text("{}")
    (tmp_path / "sweep" / "multirun.yaml").write_text("nodes: 8")
    runs = find_runs([tmp_path / "sweep" / "2", tmp_path / "sweep"])
    assert [run.folder.name for run in runs] == ["2", "0", "10"]


def test_a_torn_last_line_is_a_run_still_going_on(tmp_path: Path):
    """A killed writer leaves half a line without newline: the marks before it count, and there is no summary."""
    folder = write_record(tmp_path / "killed", status="running")
    text = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(text[:30]) + text[30][:55])
    (run,) = find_runs([folder])
    assert (len(run.metrics), run.status, run.summary) == (30, "running", None)
    assert run.final("epochs") == run.metrics[-1]["epoch"] == 14.5
    first = next(mark["time_s"] for mark in run.metrics if mark["test_accuracy"] >= 0.9)
    assert run.time_to_target_s == first


def test_a_last_line_without_newline_counts_if_it_is_whole(tmp_path: Path):
    folder = write_record(tmp_path / "run", status="running", marks=5)
    (folder / "metrics.jsonl").write_text((folder / "metrics.jsonl").read_text().rstrip("\n"))
    assert len(find_runs([folder])[0].metrics) == 5


def test_a_run_before_its_first_mark_is_read(tmp_path: Path):
    folder = write_record(tmp_path / "run", status="running", marks=0)
    (run,) = find_runs([folder])
    assert (run.metrics, run.final("test_loss"), run.clock, run.time_to_target_s) == ([], None, None, None)
    (folder / "metrics.jsonl").unlink()
    assert find_runs([folder])[0].metrics == []


def broken_line(folder: Path) -> None:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[11] = lines[11][:20]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")


BROKEN = {
    "line": (broken_line, r"metrics\.jsonl line 12 is not a JSON object$"),
    "array": (lambda f: (f / "metrics.jsonl").write_text("[1]\n{}\n"), r"metrics\.jsonl line 1 is not a JSON object$"),
    "config gone": (lambda f: (f / "config.yaml").unlink(), r"^config\.yaml missing in "),
    "config scalar": (lambda f: (f / "config.yaml").write_text("3"), r"config\.yaml must be a YAML mapping"),
    "config list": (lambda f: (f / "config.yaml").write_text("- 3"), r"config\.yaml must be a YAML mapping"),
    "config not yaml": (lambda f: (f / "config.yaml").write_text("a: [1"), r"config\.yaml must be a YAML mapping"),
    "config binary": (lambda f: (f / "config.yaml").write_bytes(b"\xff\xfe\x00"), r"config\.yaml must be a YAML mapp"),
    "summary": (lambda f: (f / "summary.json").write_text("{"), r"summary\.json is not a JSON object$"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_record_is_an_error_of_one_line(case: str, tmp_path: Path):
    damage, message = BROKEN[case]
    damage(write_record(tmp_path / "run"))
    with pytest.raises(ValueError, match=message) as caught:
        find_runs([tmp_path])
    assert "\n" not in str(caught.value)


def test_a_path_without_runs_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for path, reason in (
        (tmp_path, "no folder with"),
        (tmp_path / "x", "no such folder"),
        (tmp_path / "file", "a file"),
    ):
        with pytest.raises(ValueError, match=f"^no run under {path}: .*{reason}"):
            find_runs([path])


# --- labels ----------------------------------------------------------------------------------------------------------


def test_labels_name_what_differs_and_nothing_else(tmp_path: Path):
    """Options that belong to one algorithm only follow from its name; those of one algorithm that vary do not."""
    folders = [
        write_record(tmp_path / "a", "gossip"),
        write_record(tmp_path / "b", "gossip", **{"algo.tau": 10}),
        write_record(tmp_path / "c", "easgd"),
        write_record(tmp_path / "d", "sync", **{"wandb.mode": "online"}),
    ]
    assert run_labels(find_runs(folders)) == ["gossip, tau=1", "gossip, tau=10", "easgd", "sync"]
    assert run_labels(find_runs(folders[2:])) == ["easgd", "sync"]
    assert run_labels(find_runs(folders[:2])) == ["tau=1", "tau=10"]
    assert run_labels(find_runs(folders[:1])) == ["gossip"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"nodes": 8}, {"nodes": 16}, ["nodes=8", "nodes=16"]),
        ({"optimizer.lr": 1e-5}, {"optimizer.lr": 0.1}, ["lr=1e-05", "lr=0.1"]),
        ({"target": 0.9}, {"target": None}, ["target=0.9", "target=none"]),
        ({"cluster.slow_nodes": {3: 2.0}}, {"cluster.slow_nodes": {}}, ["slow_nodes={3: 2}", "slow_nodes={}"]),
        ({"model.name": "mlp"}, {"model.name": "resnet8", "model.hidden": []}, ["model=mlp", "model=resnet8"]),
        ({"model.width": 1}, {"model.width": 2, "data.width": 3}, ["model.width=1", "model.width=2, data.width=3"]),
        ({"seed": 1, "data.seed": 1}, {"seed": 2, "data.seed": 2}, ["seed=1", "seed=2"]),
        ({"time_model": "ResNet-18"}, {"nodes": 9}, ["nodes=8", "nodes=9"]),
        ({"clock": "wall"}, {"clock": "virtual"}, ["clock=wall", "clock=virtual"]),
        ({"model": {"_target_": "a.MLP"}}, {"model": {"_target_": "a.CNN"}}, ["model=MLP", "model=CNN"]),
        ({"resume": "a"}, {"resume": "b", "hydra": {"job": 1}}, ["gossip", "gossip"]),
    ],
)
def test_a_difference_is_named_by_its_shortest_key(
    first: dict[str, Any], second: dict[str, Any], expected: list[str], tmp_path: Path
):
    runs = find_runs([write_record(tmp_path / "a", **first), write_record(tmp_path / "b", **second)])
    assert sorted(run_labels(runs)) == sorted(expected)


FLATS = st.lists(
    st.fixed_dictionaries(
        {"algo.name": st.sampled_from(["sync", "gossip"]), "nodes": st.sampled_from("1248")},
        optional={key: st.sampled_from("xyz") for key in ("algo.tau", "lr", "model.width", "data.width", "data.name")},
    ),
    min_size=1,
    max_size=8,
)


@given(FLATS)
def test_labels_differ_exactly_where_configurations_do(flats: list[dict[str, str]]):
    """Two runs have one label if and only if they have one configuration: no difference is hidden, none invented."""
    labels = label(flats)
    for a, name_a in zip(flats, labels, strict=True):
        for b, name_b in zip(flats, labels, strict=True):
            assert (a == b) == (name_a == name_b)


@given(FLATS)
def test_a_key_equal_in_all_runs_is_in_no_label(flats: list[dict[str, str]]):
    constant = [flat | {"optimizer.momentum": "0.9"} for flat in flats]
    assert label(constant) == label(flats)


def test_runs_that_differ_by_seed_only_are_one_series(tmp_path: Path):
    for algo in ("sync", "gossip"):
        for seed in range(3):
            write_record(tmp_path / f"{algo}{seed}", algo, seed=seed)
    gathered = series(find_runs([tmp_path]))
    assert [(one.label, len(one.runs)) for one in gathered] == [("gossip", 3), ("sync", 3)]


def test_seeds_that_are_not_averaged_over_are_named(tmp_path: Path):
    runs = find_runs([write_record(tmp_path / "a", "sync", seed=1), write_record(tmp_path / "b", "gossip", seed=2)])
    assert [one.label for one in series(runs)] == ["sync, seed=1", "gossip, seed=2"]


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_the_mean_over_seeds_ends_with_the_shortest_run(tmp_path: Path):
    """Means and ranges on the union of the marks, by linear interpolation, where every seed has values."""
    lines = {"a": [(0, 0), (2, 4), (4, 8)], "b": [(0, 2), (1, 3), (3, 5)]}
    for name, pairs in lines.items():
        write_record(tmp_path / name, seed=ord(name), status="running", marks=0)
        text = "".join(json.dumps({"time_s": t, "test_loss": y}) + "\n" for t, y in pairs)
        (tmp_path / name / "metrics.jsonl").write_text(text)
    curve = mean_curve(find_runs([tmp_path]), "time_s", "test_loss")
    assert curve is not None
    assert curve.x.tolist() == [0, 1, 2, 3]
    assert curve.mean.tolist() == [1.0, 2.5, 4.0, 5.5]
    assert curve.low.tolist() == [0, 2, 4, 5]
    assert curve.high.tolist() == [2, 3, 4, 6]


def scaling_runs(top: Path, times: dict[tuple[str, int, int], float | None], **changes: Any) -> list[Run]:
    """Runs by (algorithm, nodes, seed) with the given times to target."""
    for (algo, nodes, seed), seconds in times.items():
        folder = write_record(top / f"{algo}-{nodes}-{seed}", algo, nodes=nodes, seed=seed, **changes)
        rewrite(folder, {}, {"time_to_target_s": seconds})
    return find_runs([top])


def test_speed_up_is_the_base_time_over_the_time(tmp_path: Path):
    """12 s on one node and 3 s on eight is a speed-up of 4; over seeds the base is the mean of its times."""
    times = {("sync", 1, 0): 12.0, ("sync", 8, 0): 3.0, ("sync", 32, 0): None}
    times |= {("gossip", 1, seed): 10.0 + 4 * seed for seed in (0, 1)} | {("gossip", 8, seed): 2.0 for seed in (0, 1)}
    found = {one.label: one for one in scalings(scaling_runs(tmp_path, times))}
    assert found["sync"].speed_up() == {1: [1.0], 8: [4.0]}
    assert found["sync"].missed == [32]
    assert found["gossip"].speed_up() == {1: [1.2, 12 / 14], 8: [6.0, 6.0]}


def test_there_is_no_speed_up_over_a_run_that_missed_its_target(tmp_path: Path):
    runs = scaling_runs(tmp_path, {("sync", 1, 0): None, ("sync", 4, 0): 3.0, ("sync", 8, 0): 2.0})
    assert scalings(runs)[0].speed_up() == {}
    with pytest.raises(NoData, match="no algorithm reached its target at its smallest node count and at another"):
        speed_up_figure(runs)


def test_speed_up_says_relative_to_what(tmp_path: Path):
    """With a common smallest node count linear speed-up is drawn; without one there is no common reference."""
    runs = scaling_runs(tmp_path / "a", {("sync", 1, 0): 8.0, ("sync", 4, 0): 3.0})
    (axes,) = speed_up_figure(runs).axes
    assert axes.get_ylabel().replace("\n", " ") == "speed-up over the same algorithm on 1 node"
    assert axes.lines[-1].get_xydata().tolist() == [[1, 1], [4, 4]]  # pyright: ignore[reportAttributeAccessIssue]
    runs += scaling_runs(tmp_path / "b", {("gossip", 2, 0): 8.0, ("gossip", 4, 0): 3.0})
    (axes,) = speed_up_figure(runs).axes
    assert axes.get_ylabel().replace("\n", " ") == "speed-up over the same algorithm's smallest node count"
    assert len(axes.lines) == 2


def test_a_learning_rate_chosen_per_node_count_does_not_split_the_curve(tmp_path: Path):
    """lr 0.1 on 1 node and 0.4 on 4 is one curve; both rates on both node counts are two."""
    for nodes in (1, 4):
        write_record(tmp_path / "scaled" / str(nodes), nodes=nodes, **{"optimizer.lr": 0.1 * nodes})
        for lr in (0.1, 0.4):
            write_record(tmp_path / "crossed" / f"{nodes}-{lr}", nodes=nodes, **{"optimizer.lr": lr})
    assert [one.label for one in scalings(find_runs([tmp_path / "scaled"]))] == ["gossip"]
    assert [one.label for one in scalings(find_runs([tmp_path / "crossed"]))] == ["lr=0.1", "lr=0.4"]


# --- the table -------------------------------------------------------------------------------------------------------


def table_runs(top: Path) -> list[Run]:
    times: dict[str, float | None] = {"sync": 12345.6, "easgd": None, "gossip": 7.0}
    for algo, seconds in times.items():
        folder = write_record(top / algo, algo, status="diverged" if algo == "easgd" else "completed")
        summary = {
            "time_to_target_s": seconds, "time_s": 20000.0, "bytes_sent_total": 1_234_567_890, "test_loss": 0.123456,
            "test_accuracy": 0.9, "idle_fraction_mean": 0.0, "idle_fraction_max": 0.05, "samples": 28021,
            "epochs": 12.0,
        }  # fmt: skip
        rewrite(folder, {}, summary | ({"test_loss": None} if algo == "easgd" else {}))
    write_record(top / "timing", "dpsgd", timing_only=True, target=None)
    return find_runs([top])


def test_the_table_holds_the_record_soonest_first(tmp_path: Path):
    """By time to target, then never, then without target; four digits, GB of 1e9 bytes, idle in per cent."""
    summary_table(table_runs(tmp_path / "runs")).write(tmp_path / "summary")
    lines = (tmp_path / "summary.md").read_text().splitlines()
    assert lines[0].startswith("| run | status | samples | epochs | test loss | test accuracy | time to target (s) |")
    numbers = "28021 | 12.00 | 0.1235 | 0.9000 | {} | 20000 | 1.235 | 0 | 5.000 |"
    assert lines[2] == "| gossip, target=0.9 | completed | " + numbers.format("7.000")
    assert lines[3] == "| sync, target=0.9 | completed | " + numbers.format("12346")
    assert lines[4] == "| easgd, target=0.9 | diverged | " + numbers.format("never").replace("0.1235", "-")
    assert lines[5].startswith("| dpsgd, target=none | completed | 28021 | 19.50 | - | - | - | ")
    assert lines[-1] == "times: virtual time; target: test accuracy 0.9"


def test_top_5_has_a_column_where_a_run_has_it(tmp_path: Path):
    """Data of no more than five classes have none."""
    folder = write_record(tmp_path / "runs" / "a", "sync")
    write_record(tmp_path / "runs" / "b", "gossip")
    for top5, heading in ((None, False), (0.98765, True)):
        rewrite(folder, {}, {"test_top5": top5})
        summary_table(find_runs([tmp_path / "runs"])).write(tmp_path / "summary")
        lines = (tmp_path / "summary.md").read_text().splitlines()
        assert ("| test accuracy | test top-5 |" in lines[0]) == heading
        assert (" | 0.9877 | " in "".join(lines)) == heading
        assert ("test_accuracy,test_top5," in (tmp_path / "summary.csv").read_text()) == heading
        assert len({line.count("|") for line in lines[:4]}) == 1


def test_csv_has_the_records_names_and_unrounded_numbers(tmp_path: Path):
    summary_table(table_runs(tmp_path / "runs")).write(tmp_path / "summary")
    head, first, second, third, _ = (tmp_path / "summary.csv").read_text().splitlines()
    names = "run,folder,status,clock,target_accuracy,samples,epochs,test_loss,test_accuracy,time_to_target_s,time_s,"
    assert head == names + "bytes_sent_total,idle_fraction_mean,idle_fraction_max"
    assert first.endswith(",completed,virtual,0.9,28021,12,0.123456,0.9,7,20000,1234567890,0,0.05")
    assert ",12345.6," in second
    assert third.endswith(",diverged,virtual,0.9,28021,12,,0.9,never,20000,1234567890,0,0.05")


def test_the_terminal_shows_the_same_rows_and_marks_what_goes_on(tmp_path: Path):
    """Labels with square brackets are text and no markup; a run without summary has not reached its target yet."""
    write_record(tmp_path / "a", status="running", marks=2, **{"model.hidden": [64, 32]})
    write_record(tmp_path / "b", **{"model.hidden": ["bold"]})
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    summary_table(find_runs([tmp_path])).print(console)
    text = console.export_text().splitlines()
    console.file.close()
    assert text[1].startswith("hidden=[bold]")
    assert text[2].split()[:3] == ["hidden=[64,", "32]", "running"]
    assert "not yet" in text[2]


def test_rows_without_time_come_last(tmp_path: Path):
    write_record(tmp_path / "b", "sync", target=None)
    write_record(tmp_path / "a", "gossip", target=None, status="running", marks=0)
    assert [name for name, _ in by_time(find_runs([tmp_path]))] == ["sync", "gossip"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.9, "0.9000"), (123.456, "123.5"), (999.95, "1000."), (1234.4, "1234"), (123456.7, "123457"),
     (2.5e-6, "2.500e-06"), (3.21e12, "3.210e+12"), (28021, "28021"), (math.nan, "-"), ("never", "never"),
     (-0.5, "-0.5000")],
)  # fmt: skip
def test_numbers_are_shown_with_four_significant_digits(value: float | int | str, text: str):
    assert shown(value) == text


# --- figures ---------------------------------------------------------------------------------------------------------


def drawn(figure: Figure) -> bool:
    """Whether every panel has labelled axes and something in it, rendered without a warning."""
    figure.canvas.draw()
    return all(
        axes.get_xlabel() and (axes.get_ylabel() or axes.patches) and (axes.lines or axes.patches)
        for axes in figure.axes
    )


def test_every_figure_has_labelled_axes_and_data(tmp_path: Path):
    for nodes in (1, 8):
        write_all(tmp_path / str(nodes), nodes=nodes)
        write_all(tmp_path / f"real{nodes}", nodes=nodes, clock="wall")
    runs = find_runs([tmp_path])
    with drawing():
        for name, make in figures(("time", "epochs", "bytes", "samples")).items():
            assert drawn(make(runs)), name
        assert drawn(overview(runs))


def test_axes_carry_units_and_the_clock(tmp_path: Path):
    runs = find_runs([write_record(tmp_path / "a", clock="wall")])
    assert x_axis("time", runs).label == time_label(runs) == "wall time (s)"
    assert x_axis("bytes", runs).label == "sent by all nodes (MB)"
    (axes,) = curves_figure(runs, "bytes", ["test_accuracy"]).axes
    assert axes.lines[0].get_xdata()[-1] == runs[0].metrics[-1]["bytes_sent"] / 1e6  # pyright: ignore
    runs += find_runs([write_record(tmp_path / "b", clock="virtual")])
    assert time_label(runs) == "virtual (sim) or wall (dist) time (s)"


def test_up_to_twelve_curves_differ_without_colour(tmp_path: Path):
    """In grey, line style and marker tell curves apart: the pair is distinct for each of 12 (and of 60)."""
    for i in range(12):
        write_record(tmp_path / str(i), marks=5, **{"optimizer.lr": 0.1 + i})
    (axes,) = curves_figure(find_runs([tmp_path]), "time", ["train_loss"]).axes
    assert len({(str(line.get_linestyle()), str(line._dash_pattern), line.get_marker()) for line in axes.lines}) == 12  # pyright: ignore
    assert len({(str(curve_style(i)["linestyle"]), curve_style(i)["marker"]) for i in range(60)}) == 60


def test_neighbouring_colours_differ_in_lightness():
    """Relative luminance of sRGB, as a grey printer sees it; neighbours in the legend are 8 points of L* apart."""

    def lightness(index: int) -> float:
        channels = np.array(to_rgb(curve_style(index)["color"]))
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return 116 * float(np.cbrt(linear @ [0.2126, 0.7152, 0.0722])) - 16

    assert all(abs(lightness(i) - lightness(i + 1)) > 8 for i in range(12))


def test_panels_and_figures_without_data_are_not_drawn(tmp_path: Path):
    """A timing-only run has idle shares alone; a quadratic has losses, and no accuracy."""
    timing = find_runs([write_record(tmp_path / "timing", timing_only=True, target=None)])
    written, missing = draw(timing, tmp_path)
    assert [path.name for path in written] == ["overview.png", "idle.png"]
    assert missing["loss_time"] == "no run has train_loss or test_loss against time_s"
    assert missing["speed_up"] == "no run has a target accuracy"
    assert len(overview(timing).axes) == 1
    quadratic = find_runs([write_record(tmp_path / "quadratic", quadratic=True)])
    assert len(overview(quadratic).axes) == 2
    with pytest.raises(NoData, match=r"^no run has test_accuracy against time_s$"):
        curves_figure(quadratic, "time", ["test_accuracy"])


def test_a_run_without_marks_draws_nothing(tmp_path: Path):
    runs = find_runs([write_record(tmp_path / "run", status="running", marks=0)])
    assert draw(runs, tmp_path)[0] == []
    with pytest.raises(NoData):
        overview(runs)
    with pytest.raises(NoData):
        idle_figure(runs)


def test_no_share_of_the_time_is_above_100_percent(tmp_path: Path):
    """The axis is longer, for the numbers beside the bars."""
    folder = write_record(tmp_path / "a", "sync")
    rewrite(folder, {}, {"idle_fraction_mean": 0.97, "idle_fraction_max": 0.99})
    axes = idle_figure(find_runs([folder])).axes[0]
    assert max(axes.get_xticks()) == 100
    assert axes.get_xlim()[1] > 100


def test_a_diverged_run_is_marked_and_does_not_flatten_the_others(tmp_path: Path):
    """Its loss goes to 1e55 and on to infinity (null in the record), the others lie below 2.6: so does the axis."""
    runs = find_runs([write_record(tmp_path / "a", "sync"), write_record(tmp_path / "b", "gossip", status="diverged")])
    figure = curves_figure(runs, "time", ["test_loss"])
    assert figure.axes[0].get_ylim()[1] < 10
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["sync", "gossip (diverged)"]
    assert drawn(figure)


def test_extreme_and_missing_values_are_drawn_or_left_out(tmp_path: Path):
    """NaN, infinities and 1e300 in a record are results of divergence; none of them stops the drawing."""
    folder = write_record(tmp_path / "a", status="diverged")
    marks = [{"time_s": i, "clock": "virtual", "test_loss": y} for i, y in enumerate([1.0, 1e300, math.inf, math.nan])]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(mark) + "\n" for mark in marks))
    runs = find_runs([folder])
    assert curves_figure(runs, "time", ["test_loss"]).axes[0].lines[0].get_xdata().tolist() == [0, 1]  # pyright: ignore
    runs += find_runs([write_record(tmp_path / "b", "sync")])
    assert drawn(curves_figure(runs, "time", ["test_loss"]))


def test_losses_over_more_than_two_decades_have_a_logarithmic_axis(tmp_path: Path):
    assert not wants_log(np.array([0.0, 0.01, 1.0]))
    assert wants_log(np.array([0.0, 0.0099, 1.0]))
    assert not wants_log(np.array([-1.0, 0.001, 1.0]))
    assert not wants_log(np.array([0.0]))


def test_a_curve_of_zeros_is_named_where_the_axis_is_logarithmic(tmp_path: Path):
    """sync has no discrepancy at all, which a logarithmic axis cannot show."""
    for algo, values in {"sync": [0, 0, 0], "gossip": [0, 1, 1e-3]}.items():
        marks = [{"time_s": i, "clock": "virtual", "discrepancy": y} for i, y in enumerate(values)]
        folder = write_record(tmp_path / algo, algo)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(mark) + "\n" for mark in marks))
    figure = curves_figure(find_runs([tmp_path]), "time", ["discrepancy"])
    assert figure.axes[0].get_yscale() == "log"
    assert figure.axes[0].get_title("right") == "0 throughout: sync"
    assert drawn(figure)


def test_every_figure_says_whose_time_it_shows(tmp_path: Path):
    """A cluster may state the time of one network while the gradients are those of another."""
    model = "ResNet-18 on ImageNet, 46.8 MB messages"
    for nodes in (1, 8):
        write_record(tmp_path / str(nodes), nodes=nodes, time_model=model)
    runs = find_runs([tmp_path])
    expected = f"time of {model}; gradients of mlp on digits"
    drawable = {name: make for name, make in figures(("time", "epochs", "bytes")).items() if name != "predicted"}
    for figure in [*(make(runs) for make in drawable.values()), overview(runs)]:
        legends = [legend.get_title().get_text() for legend in figure.legends]
        assert any(" ".join(text.split()).startswith(expected) for text in [figure.get_supxlabel(), *legends])
    runs += find_runs([write_record(tmp_path / "own", "sync")])
    assert idle_figure(runs).get_supxlabel().replace("\n", " ").startswith(f"some runs: {expected}")


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_redrawing_gives_the_same_bytes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No date, no random element id, and nothing of the caller's matplotlib settings."""
    write_all(tmp_path / "runs", marks=6)
    runs = find_runs([tmp_path / "runs"])
    first = b"".join(path.read_bytes() for path in draw(runs, tmp_path, [kind])[0])
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    with matplotlib.rc_context({"font.size": 20, "axes.grid": False}):
        second = b"".join(path.read_bytes() for path in draw(runs, tmp_path, [kind])[0])
    assert first == second
    assert len(first) > 5000


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_figures_and_tables_and_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_record(tmp_path / "runs" / "a", "sync")
    write_record(tmp_path / "runs" / "b", "gossip", status="running", marks=9)
    out = tmp_path / "new" / "figures"
    assert main([str(tmp_path / "runs"), "--out", str(out), "--format", "png,svg", "--x", "epochs"]) == 0
    stems = {"overview", "loss_epochs", "accuracy_epochs", "idle", "discrepancy"}
    expected = {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")} | {"summary.csv", "summary.md"}
    assert {path.name for path in out.iterdir()} == expected
    text = capsys.readouterr().out
    assert all(str(out / name) in text for name in expected)
    assert "not drawn: speed_up (all runs with a target have nodes=8)" in text
    assert "1 of 2 runs have no summary (going on, or killed): shown as far as they got" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no run under nowhere: no such folder"),
        ([], "the following arguments are required: RUNS"),
        (["run", "--format", "gif"], "--format must be of png, svg, pdf, separated by commas, got 'gif'"),
        (["run", "--x", "time,speed"], "--x must be of time, epochs, bytes, samples, separated by commas, got 'speed'"),
        (["run", "--out", "file/out"], "--out must be a folder that can be written, got file/out (Not a directory)"),
        (["run", "--out", "file"], "--out must be a folder that can be written, got file (File exists)"),
    ],
)
def test_an_error_is_one_line_and_nothing_is_written(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    write_record(tmp_path / "run")
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(arguments) == 2
    assert sorted(tmp_path.rglob("*")) == before
    assert capsys.readouterr() == ("", f"dsgd-plot: {message}\n")


def test_neither_reading_nor_drawing_imports_torch_and_help_no_matplotlib(tmp_path: Path):
    """`dsgd-plot --help` answers at once, and records can be drawn where torch is slow to load."""
    write_record(tmp_path / "run")
    script = "import sys\nfrom dsgd.cli.plot import main\n{}\nprint([m for m in {} if m in sys.modules])"
    for call, loaded in (
        ("try: main(['--help'])\nexcept SystemExit: pass", "[]"),
        (f"main([{str(tmp_path / 'run')!r}, '--out', {str(tmp_path / 'out')!r}])", "['matplotlib']"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", script.format(call, ("torch", "matplotlib"))],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.splitlines()[-1] == loaded


def test_the_verdict_names_the_first_and_the_most_idle(tmp_path: Path):
    """Medians over seeds; who misses the target in some seed is not ranked."""
    write_record(tmp_path / "a", "sync")
    write_record(tmp_path / "b", "gossip")
    write_record(tmp_path / "c", "easgd", target=0.9, marks=2)
    runs = find_runs([tmp_path])
    times = {run.algorithm: run.time_to_target_s for run in runs}
    assert times["sync"]
    assert times["gossip"]
    first, *_ = sorted((seconds, algo) for algo, seconds in times.items() if seconds)
    sentences = verdict(runs)
    assert sentences[0].startswith(f"{first[1]} reaches a test accuracy of 0.9 first, after {first[0]:.3g} s")
    idle = {run.algorithm: run.final("idle_fraction_mean") for run in runs}
    assert sentences[-1].startswith(f"{max(idle, key=lambda algo: idle[algo])} waits most")
    assert verdict(runs[:1]) == []
