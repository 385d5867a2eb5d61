"""Figures: what they show, what they leave out, and that they come out the same again."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from dsgd.record.reader import Run, find_runs
from dsgd.report.curves import curves_figure, median_curve, time_label, x_axis
from dsgd.report.figures import draw, figures, overview
from dsgd.report.labels import series
from dsgd.report.look import WIDTHS, Look
from dsgd.report.scaling import speed_up_figure
from dsgd.report.setting import setting_text
from dsgd.report.sheet import wants_log
from dsgd.report.style import NoData, curve_style, drawing, styled
from tests.support.each_row import each_row
from tests.support.overlaps import overlaps
from tests.support.records import write_all, write_record


def drawn(figure: Figure) -> bool:
    """Whether every panel has labelled axes and something in it, rendered without a warning."""
    FigureCanvasAgg(figure).draw()
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
        for name, make in figures(("time", "samples")).items():
            shown = [run for run in runs if run.clock == "wall"] if name == "speed_up" else runs
            assert drawn(make(shown)), name
        with pytest.raises(NoData, match=r"^virtual and wall time have no common base: draw the runs of each"):
            speed_up_figure(runs)


def test_axes_carry_units_and_the_clock(tmp_path: Path):
    runs = find_runs([write_record(tmp_path / "a", clock="wall")])
    assert x_axis("time", runs).label == time_label(runs) == "wall time (s)"
    assert x_axis("bytes", runs).label == "sent by all nodes (MB)"
    (axes,) = curves_figure(runs, "bytes", ["test_accuracy"]).axes
    assert axes.lines[0].get_xdata()[-1] == runs[0].metrics[-1]["bytes_sent"] / 1e6  # pyright: ignore
    runs += find_runs([write_record(tmp_path / "b", clock="virtual")])
    assert time_label(runs) == "virtual (sim) or wall (dist) time (s)"


def test_colour_belongs_to_the_algorithm_and_line_style_to_what_else_differs(tmp_path: Path):
    """Whatever runs are drawn beside it, and in whatever order, an algorithm keeps its colour."""
    for i, algo in enumerate(("gossip", "sync")):
        for rate in (0.1, 0.2):
            write_record(tmp_path / f"{i}{rate}", algo, **{"optimizer.lr": rate})
    runs = find_runs([tmp_path])
    styles = {one.label: one.style for one in styled(series(runs))}
    for rate in ("0.1", "0.2"):
        assert styles[f"gossip, lr={rate}"]["linestyle"] == styles[f"sync, lr={rate}"]["linestyle"]
    assert styles["sync, lr=0.1"]["linestyle"] != styles["sync, lr=0.2"]["linestyle"]
    for algo in ("gossip", "sync"):
        alone = series([run for run in runs if run.algorithm == algo][:1])
        colours = {style["color"] for label, style in styles.items() if label.startswith(algo)}
        assert colours == {styled(alone)[0].style["color"]}


def test_the_colours_of_the_algorithms_differ_in_lightness():
    """Relative luminance of sRGB, as a grey printer sees it: 8 points of L* between any two."""

    def lightness(index: int) -> float:
        channels = np.array(to_rgb(curve_style(index, 0)["color"]))
        linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
        return 116 * float(np.cbrt(linear @ [0.2126, 0.7152, 0.0722])) - 16

    ordered = sorted(lightness(i) for i in range(6))
    assert all(after - before > 7.5 for before, after in pairwise(ordered))


def outside_ticks(figure: Figure) -> set[Text]:
    """Tick labels, of which matplotlib keeps some beyond the axis that are not drawn."""
    return {tick for axes in figure.axes for tick in (*axes.get_xticklabels(), *axes.get_yticklabels())}


def test_at_print_size_nothing_is_clipped_and_letters_are_readable(tmp_path: Path):
    """Every text lies within the figure, of the width that was asked for, in letters of 6.5 points at least."""
    for nodes in (1, 8):
        write_all(tmp_path / str(nodes), nodes=nodes)
    runs = find_runs([tmp_path])
    with drawing("single"):
        for name, make in figures(("time", "bytes")).items():
            if name == "predicted":
                continue
            figure = make(runs)
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            inches = figure.get_figwidth()
            assert inches == WIDTHS["single"].inches, name
            renderer = canvas.get_renderer()
            for text in figure.findobj(Text):
                assert isinstance(text, Text)
                if text.get_visible() and text.get_text().strip():
                    assert "mathdefault" not in text.get_text()  # math is parsed in our own labels only
                    assert float(text.get_fontsize()) >= 6.5
                    box = text.get_window_extent(renderer)
                    room = [box.x0, box.y0, figure.bbox.x1 - box.x1, figure.bbox.y1 - box.y1]
                    assert min(room) >= -1 or text in outside_ticks(figure), (name, text.get_text())


@each_row("seconds", [1e-6, 1e3])
@each_row("width", ["single", "double"])
def test_no_label_covers_another(width: str, seconds: float, tmp_path: Path):
    """Of long names in a narrow panel, and of times with many digits."""
    runs = [
        at_speed(find_runs([write_record(tmp_path / f"{algo}{nodes}", algo, nodes=nodes)])[0], seconds)
        for algo in ("sync", "easgd", "downpour", "gossip", "dpsgd")
        for nodes in (8, 1024)
    ]
    with drawing(width):
        for name in ("overview", "loss_time"):
            assert overlaps(figures(["time"])[name](runs)) == [], name


def at_speed(run: Run, seconds: float) -> Run:
    """Return a run whose times are so many times as long, and in which nodes wait a thousandth as much."""
    idle = {name: 1e-3 * (run.final(name) or 0) for name in ("idle_fraction_mean", "idle_fraction_max")}
    marks = [{**mark, "time_s": seconds * mark["time_s"]} for mark in run.metrics]
    return replace(run, metrics=marks, summary={**(run.summary or {}), **idle})


def test_a_figure_without_its_caption_has_it_beside_it(tmp_path: Path):
    """No title and no notes; panels have their letters, and curves their legend."""
    runs = find_runs([write_record(tmp_path / algo, algo) for algo in ("sync", "gossip")])
    (out := tmp_path / "out").mkdir()
    written, _ = draw(runs, out, Look(formats=["svg"], captions=False), only=["overview"])
    assert [path.name for path in written] == ["overview.svg", "overview.txt"]
    lines = written[1].read_text().splitlines()
    assert lines[0].startswith("mlp on digits, 8 nodes")
    assert lines[-1] == setting_text(runs)
    drawn_texts = written[0].read_text()
    assert "setting:" not in drawn_texts
    with drawing(captions=False):
        figure = overview(runs)
    assert figure.get_suptitle() == figure.get_supxlabel() == figure.legends[0].get_title().get_text() == ""
    assert [text.get_text() for text in figure.legends[0].get_texts()][:2] == ["sync", "gossip"]
    assert figure.axes[0].get_title(loc="left") == "(a)"
    with drawing():
        assert "setting:" in overview(runs).legends[0].get_title().get_text()


def test_panels_and_figures_without_data_are_not_drawn(tmp_path: Path):
    """A timing-only run has idle shares alone; a quadratic has losses, and no accuracy."""
    timing = find_runs([write_record(tmp_path / "timing", timing_only=True, target=None)])
    written, missing = draw(timing, tmp_path, Look(formats=["png"]))
    assert [path.name for path in written] == ["overview.png", "idle.png"]
    assert missing["loss_time"] == "no run has train_loss or test_loss against time_s"
    assert missing["speed_up"] == "no run has a target"
    assert len(overview(timing).axes) == 1
    quadratic = find_runs([write_record(tmp_path / "quadratic", quadratic=True)])
    assert len(overview(quadratic).axes) == 2
    with pytest.raises(NoData, match=r"^no run has test_accuracy against time_s$"):
        curves_figure(quadratic, "time", ["test_accuracy"])


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


def test_values_over_a_decade_have_a_logarithmic_axis(tmp_path: Path):
    assert not wants_log(np.array([0.0, 0.101, 1.0]))
    assert wants_log(np.array([0.0, 0.1, 1.0]))
    assert not wants_log(np.array([-1.0, 0.001, 1.0]))
    assert not wants_log(np.array([0.0]))
    runs = find_runs([write_record(tmp_path / "a", "sync")])
    scales = {}
    for log in (None, ["x"], ["y"], []):
        with drawing("wide", log):
            (loss,) = curves_figure(runs, "time", ["train_loss"]).axes
            (accuracy,) = curves_figure(runs, "time", ["test_accuracy"]).axes
        scales[str(log)] = (loss.get_xscale(), loss.get_yscale(), accuracy.get_yscale())
    assert scales == {
        "None": ("linear", "log", "linear"),
        "['x']": ("log", "linear", "linear"),
        "['y']": ("linear", "log", "log"),
        "[]": ("linear", "linear", "linear"),
    }


def test_redrawing_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No date, no random element id, and nothing of the caller's matplotlib settings."""
    write_all(tmp_path / "runs", marks=6)
    runs = find_runs([tmp_path / "runs"])
    first = b"".join(path.read_bytes() for path in draw(runs, tmp_path, Look(formats=["svg"]), ["time"])[0])
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    with matplotlib.rc_context({"font.size": 20, "axes.grid": False}):
        second = b"".join(path.read_bytes() for path in draw(runs, tmp_path, Look(formats=["svg"]), ["time"])[0])
    assert first == second
    assert len(first) > 5000


def test_the_median_over_seeds_ends_with_the_shortest_run(tmp_path: Path):
    """Medians and intervals on the union of the marks, by linear interpolation, where every seed has values."""
    lines = {"a": [(0, 0), (2, 4), (4, 8)], "b": [(0, 2), (1, 3), (3, 5)], "c": [(0, 9), (3, 9)]}
    for name, pairs in lines.items():
        write_record(tmp_path / name, seed=ord(name), status="running", marks=0)
        text = "".join(json.dumps({"time_s": t, "test_loss": y}) + "\n" for t, y in pairs)
        (tmp_path / name / "metrics.jsonl").write_text(text)
    curve = median_curve(find_runs([tmp_path]), "time_s", "test_loss")
    assert curve is not None
    assert curve.x.tolist() == [0, 1, 2, 3]
    assert curve.median.tolist() == [2, 3, 4, 6]
    assert curve.low.tolist() == [0, 2, 4, 5]
    assert curve.high.tolist() == [9, 9, 9, 9]
