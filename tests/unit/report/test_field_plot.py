"""Any field against any key: what is gathered, chosen and divided, and that the figure shows exactly that."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from dsgd.record.reader import Run, find_runs
from dsgd.report.field_plot import FieldPlot, field_figure, field_plot, field_table
from dsgd.report.fields import field_value
from dsgd.report.sheet import NOTE
from dsgd.report.style import drawing
from tests.support.arrows import direction
from tests.support.each_row import each_row
from tests.support.records import rewrite, write_record


@pytest.fixture
def grid(tmp_path: Path) -> list[Run]:
    """Two algorithms on 2, 4 and 32 nodes with rates 0.1 and 0.2, seeds 0, 1, 2.

    The error is 0.1 for sync, 0.2 for gossip; a hundredth of the seed more; and half as large with rate 0.2."""
    for algo, error in (("sync", 0.1), ("gossip", 0.2)):
        for nodes in (2, 4, 32):
            for rate in (0.1, 0.2):
                for seed in (0, 1, 2):
                    folder = tmp_path / f"{algo}-{nodes}-{rate}-{seed}"
                    write_record(folder, algo, nodes=nodes, seed=seed, **{"optimizer.lr": rate})
                    accuracy = 1 - (error + 0.01 * seed) / (2 if rate == 0.2 else 1)
                    rewrite(folder, {}, {"test_accuracy": accuracy, "time_s": 100.0 / nodes, "samples": 6400})
    return find_runs([tmp_path])


def medians(found: FieldPlot) -> dict[str, list[tuple[str, float]]]:
    """Line: (x, median) of its points, of a plot with one panel."""
    (lines,) = found.panels.values()
    return {one.label: [(x, round(value.median, 9)) for x, value in points.items()] for one, points in lines}


def test_a_field_over_a_key_has_a_line_per_configuration_and_a_point_per_value(grid: list[Run]):
    found = field_plot(grid, "test_error", "nodes")
    assert medians(found)["sync, lr=0.1"] == [("2", 0.11), ("4", 0.11), ("32", 0.11)]
    assert medians(found)["gossip, lr=0.2"] == [("2", 0.105), ("4", 0.105), ("32", 0.105)]
    assert all(value.count == 3 for value in found.panels[""][0][1].values())
    found = field_plot(grid, "test_error", "nodes", panels="lr")
    assert list(map(found.title, found.panels)) == ["lr=0.1", "lr=0.2"]
    assert [[one.label for one, _ in lines] for lines in found.panels.values()] == [["gossip", "sync"]] * 2


def test_the_best_over_a_key_is_chosen_for_each_configuration_and_told(grid: list[Run], tmp_path: Path):
    """The diverged run loses although its number is the best; and what lies at the edge of the values is named."""
    found = field_plot(grid, "test_error", "nodes", ["algo"], best="lr")
    assert medians(found)["sync"] == [("2", 0.055), ("4", 0.055), ("32", 0.055)]
    assert "optimizer.lr: for each configuration the best of 0.1, 0.2 by test_error" in found.notes[0]
    assert found.notes[0].endswith("at the edge of its values: gossip 0.2, sync 0.2")
    for seed in (0, 1, 2):
        rewrite(tmp_path / f"sync-4-0.2-{seed}", {}, {"status": "diverged"})
    found = field_plot(find_runs([tmp_path]), "test_error", "nodes", ["algo"], best="lr")
    assert medians(found)["sync"] == [("2", 0.055), ("4", 0.11), ("32", 0.055)]


def test_a_speed_up_is_over_one_base_seed_by_seed(grid: list[Run], tmp_path: Path):
    """Times are 100 s / nodes, so 32 nodes are 16 times as fast as 2; one seed of the base being twice as slow makes
    that seed's speed-ups twice as large, and no median's."""
    rewrite(tmp_path / "sync-2-0.1-0", {}, {"time_s": 100.0})
    runs = [run for run in find_runs([tmp_path]) if run.setting("optimizer.lr") == 0.1]
    found = field_plot(runs, "time_s", "nodes", base="algo=sync,nodes=2")
    assert medians(found) == {"sync": [("2", 1), ("4", 2), ("32", 16)], "gossip": [("2", 1), ("4", 2), ("32", 16)]}
    assert [value.high for value in found.panels[""][0][1].values()] == [2, 4, 32]
    assert found.label.endswith("speed-up over algo=sync, nodes=2")
    rate = field_plot(runs, "samples_per_s", "nodes", base="algo=sync,nodes=2")
    assert medians(rate)["gossip"] == [("2", 1), ("4", 2), ("32", 16)]


def test_derived_fields_are_what_their_names_say(grid: list[Run]):
    """6,400 samples of batch 16 are 400 steps; 50 s on 2 nodes are 0.25 s for each of a worker's 200 steps."""
    run = next(run for run in grid if run.nodes == 2)
    assert field_value(run, "samples_per_s") == 6400 / 50
    assert field_value(run, "step_s") == pytest.approx(0.25)
    assert field_value(run, "epoch_s") == pytest.approx(50 / run.final("epochs"))
    assert field_value(run, "bytes_sent_per_step") == pytest.approx(run.final("bytes_sent_total") / 400)


def test_a_step_of_a_worker_is_one_though_its_gradient_was_dropped(grid: list[Run]) -> None:
    """With backup workers there are more steps than samples that count."""
    run = next(run for run in grid if run.nodes == 2)
    assert run.summary is not None
    run.summary["worker_steps"] = [400, 400]
    assert field_value(run, "step_s") == pytest.approx(50 * 2 / 800)


def test_the_figure_shows_the_data_of_the_table(grid: list[Run], tmp_path: Path):
    found = field_plot(grid, "test_error", "nodes", panels="lr")
    field_table(found).write(tmp_path / "table")
    with (tmp_path / "table.csv").open() as file:
        lines = list(csv.DictReader(file))
    with drawing("double"):
        figure = field_figure(found)
    assert [axes.get_title("left") for axes in figure.axes] == ["(a) lr=0.1", "(b) lr=0.2"]
    for axes, rate in zip(figure.axes, ("0.1", "0.2"), strict=True):
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        drawn = [tuple(point) for line in axes.lines for point in line.get_xydata()]  # pyright: ignore
        written = [(float(row["nodes"]), float(row["median"])) for row in lines if row["lr"] == rate]
        assert drawn == written
        assert len(drawn) == 6
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_curves_have_panels_too(grid: list[Run]):
    found = field_plot(grid, "test_loss", "time", lines=["algo"], panels="nodes", best="lr")
    figure = field_figure(found)
    assert [axes.get_title("left") for axes in figure.axes] == ["(a) nodes=2", "(b) nodes=4", "(c) nodes=32"]
    assert all(len(axes.lines) == 2 for axes in figure.axes)


def test_a_point_that_most_seeds_never_reach_is_a_limit_and_no_number(tmp_path: Path):
    """An arrow where the runs ended; of its speed-up where it would be at most, never at 0."""
    for nodes in (2, 4, 8):
        folder = write_record(tmp_path / str(nodes), "sync", nodes=nodes)
        if nodes == 8:
            lines = (folder / "metrics.jsonl").read_text().splitlines()[:3]
            marks = [json.loads(line) | {"test_accuracy": 0.5} for line in lines]
            (folder / "metrics.jsonl").write_text("".join(json.dumps(mark) + "\n" for mark in marks))
    write_record(tmp_path / "other", "gossip", nodes=2)
    runs = find_runs([tmp_path])
    figure = field_figure(field_plot(runs, "time_to_target_s", "nodes"))
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["sync (not reached at 8)", "gossip"]
    assert figure.axes[0].get_xlim()[0] < 2 < 8 < figure.axes[0].get_xlim()[1]
    *drawn, arrow = figure.axes[0].lines
    assert [np.isfinite(line.get_ydata()).sum() for line in drawn] == [2, 1]  # pyright: ignore
    end = next(run for run in runs if run.nodes == 8).final("time_s")
    assert [list(np.asarray(part)) for part in arrow.get_data()] == [[8], [end]]
    assert direction(arrow) == "^"
    assert [text.get_text() for text in figure.axes[0].texts] == [f"> {end:.3g} s"]
    assert NOTE in figure.legends[0].get_title().get_text()
    faster = field_figure(field_plot(runs, "time_to_target_s", "nodes", base="algo=sync,nodes=2"))
    base = field_value(next(run for run in runs if run.nodes == 2 and run.algorithm == "sync"), "time_to_target_s")
    *drawn, arrow = faster.axes[0].lines
    assert 0 not in [y for line in drawn for y in np.asarray(line.get_ydata())]
    assert (direction(arrow), np.asarray(arrow.get_ydata()).tolist()) == ("v", [pytest.approx(base / end)])
    assert [text.get_text() for text in faster.axes[0].texts] == [f"< {base / end:.3g}"]


@each_row(
    ("options", "message"),
    [
        ({"x": "algo.overlap"}, "--x algo.overlap: 18 of 36 runs have no such key (gossip)"),
        ({"x": "nodes", "lines": ["algo"]}, "differ in optimizer.lr: name it in --lines, --panels or --best-over"),
        ({"x": "nodes", "best": "lr", "y": "discrepancy"}, "--best-over needs a loss, an accuracy, a time or a rate"),
        ({"x": "nodes", "base": "algo=sync"}, "--base needs a time or a rate as --y (step_s, samples_per_s, ...)"),
        ({"x": "nodes", "base": "algo=sync", "y": "step_s"}, "--base must name one configuration, got algo=sync: its"),
        ({"x": "time", "base": "algo=sync", "y": "step_s"}, "--base needs a key as --x, got time"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(options: dict[str, str], message: str, grid: list[Run]):
    with pytest.raises(ValueError, match=r"^(--|runs of)") as raised:
        field_plot(grid, **{"y": "test_error"} | options)  # pyright: ignore[reportArgumentType]
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
