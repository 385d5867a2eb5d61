"""Every result says its setting: in figures, tables, verdicts and pages, in units that a person reads."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from dsgd.comparison.comparison_figure import comparison_figure, write_comparison
from dsgd.comparison.comparison_result import report
from dsgd.comparison.contenders import rank_contenders
from dsgd.comparison.options import CompareOptions
from dsgd.comparison.stages import ComparisonResult
from dsgd.record.reader import Run, find_runs
from dsgd.report.field_plot import field_figure, field_plot, field_table
from dsgd.report.figures import draw
from dsgd.report.look import Look
from dsgd.report.page import page_text
from dsgd.report.setting import setting_text, whole_setting
from dsgd.report.style import drawing
from dsgd.report.table import summary_table
from tests.support.choices import choice
from tests.support.contenders import contender
from tests.support.each_row import each_row
from tests.support.records import write_record

CONF = Path(__file__).parents[3] / "conf"
NETWORK = {
    "cluster.bandwidth": 1e9, "cluster.latency_s": 5e-3, "cluster.message_bytes": 46_758_048, "cluster.jitter": 0.1,
    "schedule": {"kind": "cosine", "warmup_epochs": 5, "linear_scaling": True},
    "budget": {"epochs": 20, "time_s": None}, "optimizer.name": "sgd", "optimizer.weight_decay": 1e-4,
}  # fmt: skip
SETTING = (
    "setting: mlp (hidden [64]) on digits; SGD, lr 0.1, momentum 0.9, weight decay 0.0001; cosine schedule, "
    "warm-up 5 epochs, linear scaling; batch 16 per node; budget 20 epochs; 8 nodes; 1 Gbit/s; 5 ms latency; "
    "jitter 10 %; slow nodes 3 (2 times as long); gradient of 100 ms (given); messages of 46.8 MB, those of "
    "ResNet-18 on ImageNet, gradients of mlp; target: test accuracy 0.9, reached for good; seeds 0 and 1"
)


def two_seeds(folder: Path, **changes: Any) -> list[Run]:
    for seed in (0, 1):
        write_record(
            folder / f"run {seed}", "gossip", seed=seed, time_model="ResNet-18 on ImageNet", **NETWORK | changes
        )
    return find_runs([folder])


def test_the_caption_has_what_decides_a_result(tmp_path: Path):
    assert setting_text(two_seeds(tmp_path)) == SETTING
    assert setting_text([]) == ""


def test_numbers_that_differ_are_listed_or_spanned_and_other_differences_are_left_to_the_names(tmp_path: Path):
    for i, nodes in enumerate((4, 8, 16)):
        rates = {"cluster.bandwidth": 10.0 ** (7 + i), "optimizer.lr": 0.1 * (i + 1), "model.hidden": [i + 1]}
        write_record(tmp_path / f"{i}", "gossip", nodes=nodes, **rates)
    text = setting_text(find_runs([tmp_path]))
    assert "lr 0.1, 0.2 or 0.3" in text
    assert "4, 8 or 16 nodes" in text
    assert "10 Mbit/s, 100 Mbit/s or 1 Gbit/s" in text
    assert text.startswith("setting: mlp on digits;")
    many = [write_record(tmp_path / "many" / f"{n}", "gossip", nodes=n) for n in (1, 2, 4, 8, 16, 32)]
    assert "1 to 32 nodes" in setting_text(find_runs(many))


def test_time_budgets_that_differ_are_listed_as_times_also_where_some_runs_have_none(tmp_path: Path):
    """As in a comparison, where the first run of tuning has no limit and the others have one each."""
    budgets = [{"epochs": 3, "time_s": limit} for limit in (None, 0.25, 1.5)]
    for i, budget in enumerate(budgets):
        write_record(tmp_path / f"{i}", "gossip", budget=budget)
    assert "; budget 3 epochs, 250 ms or 1.5 s; " in setting_text(find_runs([tmp_path]))
    for i in range(6):
        write_record(tmp_path / "many" / f"{i}", "gossip", budget={"epochs": None, "time_s": 1.0 + i})
    assert "; budget 1 s to 6 s; " in setting_text(find_runs([tmp_path / "many"]))


def test_a_count_is_singular_for_one_and_has_no_exponent(tmp_path: Path):
    one, many = ({"epochs": None, "steps": count} for count in (1, 1_000_000))
    for i, budget in enumerate((one, many)):
        write_record(tmp_path / f"{i}", "gossip", budget=budget)
    assert "; budget 1 step; " in setting_text(find_runs([tmp_path / "0"]))
    assert "; budget 1,000,000 steps; " in setting_text(find_runs([tmp_path / "1"]))
    assert "; budget 1 or 1,000,000 steps; " in setting_text(find_runs([tmp_path]))


def test_a_gradient_time_that_was_measured_is_said_to_be(tmp_path: Path):
    (run,) = find_runs([write_record(tmp_path / "a", "sync", **{"cluster.gradient_s": None})])
    assert "gradient of" not in setting_text([run])
    run.summary["gradient_s"] = 0.0059  # type: ignore[index]
    assert "gradient of 5.9 ms (measured)" in setting_text([run])


def test_every_table_figure_verdict_and_page_has_it(tmp_path: Path):
    runs = two_seeds(tmp_path / "runs")
    table = summary_table(runs)
    assert SETTING in table.caption
    table.write(tmp_path / "summary")
    for suffix in (".md", ".tex"):
        assert SETTING in (tmp_path / "summary").with_suffix(suffix).read_text()
    assert json.loads((tmp_path / "summary.setting.json").read_text())["setting"] == SETTING.removeprefix("setting: ")
    assert not (tmp_path / "summary.json").exists(), "it would make the folder a run"
    found = field_plot(runs, "test_loss", "nodes")
    assert SETTING in field_table(found).caption
    with drawing():
        assert in_figure(field_figure(found))
    page = page_text(runs)
    assert SETTING in page
    assert "<summary>" in page
    assert re.search(r"cluster\.bandwidth</th><td[^>]*>1e\+09", page)
    written, _ = draw(runs, tmp_path, Look(formats=["svg"]), ["time"])
    assert len(written) > 2
    for path in written:
        assert "setting: mlp" in path.read_text(), path.name


def in_figure(figure: Any) -> bool:
    """Whether the caption is in a figure, over however many lines."""
    texts = [legend.get_title().get_text() for legend in figure.legends] + [figure.get_supxlabel()]
    return any("messages of 46.8 MB" in " ".join(text.split()) for text in texts)


def test_a_comparison_has_it_in_its_verdict_table_json_and_figure(tmp_path: Path):
    contenders = [contender("sync", [20.0] * 5), contender("gossip", [math.inf] * 5, lr=0.2)]
    text = write_comparison(contenders, tmp_path, look=Look(formats=["svg"]))
    setting = (
        "setting: resnet8 on shapes; lr 0.1 or 0.2; batch 16 per node; 8 nodes; target: test accuracy 0.9, reached"
    )
    tuned = "tuned for each contender by validation samples: optimizer.lr, in 15 runs each"
    for shown in (text, (tmp_path / "verdict.txt").read_text(), (tmp_path / "contest.md").read_text()):
        assert setting in shown
        assert tuned in shown
        assert "median over seeds of the ratio of both times of a seed" in shown
    whole = json.loads((tmp_path / "contest.setting.json").read_text())
    assert whole["shared"]["model.name"] == "resnet8"
    last = whole["contenders"][1]["score"]
    assert (last["median"], last["censored"], last["exceeds"]) == (None, True, 100.0)
    missed = next(run for run in whole["runs"] if "gossip" in run["folder"])
    assert (missed["time_to_target_s"], missed["target_censored_at_s"]) == (None, 100.0)
    with drawing():
        figure = comparison_figure(rank_contenders(contenders))
    assert tuned in figure.legends[0].get_title().get_text()


def test_a_caption_is_silent_of_what_the_configuration_files_say(tmp_path: Path):
    """But for the bandwidth and the latency; and speaks of keys that older records have, where they are no default."""
    groups = {"optimizer": "sgd", "schedule": "constant", "cluster": "gigabit", "topology": "ring"}
    values = {group: choice(group, name) | {"name": name} for group, name in groups.items()}
    (run,) = find_runs([write_record(tmp_path / "a", "sync", precision="fp32", **values)])
    assert setting_text([run]) == (
        "setting: mlp (hidden [64]) on digits; SGD, lr 0.1; constant schedule; batch 16 per node; "
        "8 nodes; 1 Gbit/s; 100 µs latency; target: test accuracy 0.9, reached for good; seed 0"
    )
    values["schedule"]["final"] = 0.1
    (run,) = find_runs([write_record(tmp_path / "b", "sync", precision="fp64", **values)])
    assert "constant schedule, down to 10 %; batch 16 per node; fp64; " in setting_text([run])


def test_a_caption_of_times_alone_names_no_model_on_which_nothing_depends(tmp_path: Path):
    """But one from which messages have their size is named."""
    keys: dict[str, Any] = {"engine": {"gradients": "none"}, "cluster.message_bytes": 1e8}
    (given,) = find_runs([write_record(tmp_path / "given", **keys)])
    (of_model,) = find_runs([write_record(tmp_path / "own", **keys | {"cluster.message_bytes": None})])
    assert setting_text([given]).startswith("setting: times alone, no training; batch 16 per node; ")
    assert "mlp" not in setting_text([given])
    assert setting_text([of_model]).startswith("setting: mlp (hidden [64]) on digits; ")


@each_row("path", sorted((CONF / "data").glob("*.yaml")))
def test_a_data_set_as_it_is_configured_is_named_alone(path: Path, tmp_path: Path):
    """And what differs from the file is said."""
    given = {"root": "/data", "target": "mine.load", "classes": 10} if path.stem in ("folder", "import") else {}
    values = choice("data", path.stem)
    usual = values | {key: value for key, value in given.items() if key in values}
    (run,) = find_runs([write_record(tmp_path / "a", "sync", data={"name": path.stem, **usual})])
    name = "load" if path.stem == "import" else path.stem
    arguments = " (classes 10)" if path.stem == "import" else ""  # must be given
    assert f" on {name}{arguments}; " in setting_text([run])
    for key, value in values.items():
        if isinstance(value, (bool, int, float)) and key not in ("validation", "seed"):
            changed = {**usual, key: not value if isinstance(value, bool) else value + 1, "name": path.stem}
            (run,) = find_runs([write_record(tmp_path / key, "sync", data=changed)])
            assert f"{key} " in setting_text([run]).partition(";")[0]


def test_a_caption_has_the_span_of_the_links_between_regions(tmp_path: Path):
    """A pair that is null is as in the other direction; within a region there is none."""
    latency_s = [[0, 0.045, 0.08], [None, None, 0.12], [None, None, None]]
    bandwidth = [[None, 1e9, 5e8], [5e8, None, 4e8], [2e8, 2e8, None]]
    links = {"regions": ["us", "eu", "asia"], "latency_s": latency_s, "bandwidth": bandwidth}
    (run,) = find_runs([write_record(tmp_path / "a", "sync", **{"cluster.links": links})])
    assert "; regions us, eu, asia (200 Mbit/s to 1 Gbit/s, 45 to 120 ms); " in setting_text([run])
    links |= {"latency_s": [[None, 0.045, 0.045], [None, None, 0.045], [None, None, None]]}
    (run,) = find_runs([write_record(tmp_path / "b", "sync", **{"cluster.links": links})])
    assert "(200 Mbit/s to 1 Gbit/s, 45 ms); " in setting_text([run])


def test_a_record_of_a_stranger_breaks_no_caption(tmp_path: Path):
    odd = {"optimizer.lr": "fast", "optimizer.momentum": ["x"], "cluster.slow_nodes": "all", "cluster.jitter": "much"}
    odd["cluster.links"] = {"regions": ["a", "b"]}
    text = setting_text(find_runs([write_record(tmp_path / "a", "sync", **odd)]))
    assert "optimizer.momentum ['x']" in text
    assert whole_setting([]) == {"setting": "", "shared": {}, "runs": []}


def test_a_comparison_prints_setting_and_tuning_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """On the terminal, though verdict.txt and the table below have both; a page has the setting below its table."""
    found = [contender("sync, 8 nodes", [10, 12, 11]), contender("sync, 16 nodes", [8, 9, 8], nodes=16)]
    report(ComparisonResult(tmp_path, CompareOptions(), [], found, []), Look(), str(tmp_path / "page.html"))
    printed, verdict = capsys.readouterr().out, (tmp_path / "verdict.txt").read_text()
    assert "scaling: " in printed
    for line in ("setting: ", "tuned for each contender"):
        assert printed.count(line) == verdict.count(line) == (tmp_path / "contest.md").read_text().count(line) == 1
    page = re.sub("<svg.*?</svg>", "", (tmp_path / "page.html").read_text(), flags=re.DOTALL)
    assert page.count("setting: ") == page.count("tuned for each contender") == 1
