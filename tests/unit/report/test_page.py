"""The page of `dsgd-plot --html`: whole, safe with names of any kind, and working in a browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dsgd.record.reader import find_runs
from dsgd.report.labels import series
from dsgd.report.page import MOST_POINTS, curve_data, curves_of, page_text
from dsgd.report.style import styled
from tests.support.records import write_all, write_record

HOSTILE = '</script><img src=x onerror="document.title=7">&{{data}}'


class Elements(HTMLParser):
    """The elements of a page, and the texts of its cells by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._in_cell = tag in ("td", "th") or (tag == "button" and self._in_cell)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._in_cell:
            self.rows[-1][-1] += data


def data_of(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def hostile_page(folder: Path) -> Path:
    """Three seeds of three algorithms, and one run with a name and a key that try to become markup."""
    for algo in ("sync", "gossip", "easgd"):
        for seed in range(3):
            write_record(folder / "runs" / f"{algo}{seed}", algo, seed=seed)
    write_record(folder / "runs" / "<b>", "gossip", **{"data.name": HOSTILE, "model.<i>key": "<u>value"})
    (folder / "runs" / "<b>" / "env.json").write_text(json.dumps({"host": HOSTILE, "cpus": 2}))
    (folder / "page.html").write_text(page_text(find_runs([folder / "runs"]), lead=f"{HOSTILE}\nsecond"))
    return folder / "page.html"


def test_names_of_users_become_no_markup(tmp_path: Path) -> None:
    """A name that ends the script, has an event handler, and looks like a place of the template."""
    text = hostile_page(tmp_path).read_text()
    elements = Elements(text)
    assert not {"img", "b", "i", "u", "link", "iframe"} & {tag for tag, _ in elements.found}
    assert not [key for _, attributes in elements.found for key in attributes if key.startswith("on")]
    assert [tag for tag, _ in elements.found].count("script") == 2
    assert any(HOSTILE in one["label"] for one in data_of(text)["series"])
    assert any(HOSTILE in cell for row in elements.rows for cell in row)
    assert "model.<i>key" in [cell for row in elements.rows for cell in row]


def test_nothing_is_loaded_from_anywhere(tmp_path: Path) -> None:
    """No element names an address, no style or script fetches, and the page forbids it to itself."""
    text = hostile_page(tmp_path).read_text()
    assert not [attributes for _, attributes in Elements(text).found if {"src", "href", "srcset"} & attributes.keys()]
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.findall(r"\bimport\b|\bfetch\b|XMLHttp|url\((?!#)", text)
    assert "default-src 'none'" in text


def test_the_table_is_that_of_the_runs(tmp_path: Path) -> None:
    """Medians and intervals as they are printed; a status in two columns comes once."""
    for seed, status in enumerate(("completed", "diverged")):
        write_record(tmp_path / str(seed), "sync", seed=seed, status=status)
    write_record(tmp_path / "g", "gossip")
    rows = Elements(page_text(find_runs([tmp_path]))).rows
    assert rows[0][:4] == ["run", "time to target (s)", "seeds", "status"]
    assert rows[0].count("status") == 1
    assert [row[0] for row in rows[1:3]] == ["gossip", "sync"]
    assert rows[2][2:4] == ["2", "1 of 2 diverged"]
    assert re.fullmatch(r"never \[[\d.]+, never\]|[\d.]+ \[[\d.]+, never\]", rows[2][1])


def test_curves_have_the_colours_of_the_figures_and_an_end(tmp_path: Path) -> None:
    """Long ones are thinned out, their first and last mark stay; losses that explode stay numbers."""
    runs = write_all(tmp_path)
    gathered = series(runs)
    data = curve_data(runs, curves_of(runs))
    colours = {one.label: one.style["color"] for one in styled(gathered)}
    assert {one["label"]: one["light"] for one in data["series"]} == colours
    assert len({one["marker"] for one in data["series"]}) == len(gathered)
    assert [field["name"] for field in data["fields"]] == ["test_accuracy", "test_error", "train_loss", "test_loss"]
    assert data["fields"][1]["targets"] == [pytest.approx(0.1)]
    (loss,) = find_runs([write_record(tmp_path / "loss", target_loss=0.5)])
    assert [field["targets"] for field in curve_data([loss], curves_of([loss]))["fields"]] == [[], [], [], [0.5]]
    (long,) = find_runs([write_record(tmp_path / "long", marks=3 * MOST_POINTS)])
    x, *_ = curve_data([long], curves_of([long]))["series"][0]["curves"][1]["test_accuracy"]
    assert (len(x), x[0], x[-1]) == (MOST_POINTS, 0, 0.5 * (3 * MOST_POINTS - 1))
    write_record(tmp_path / "bad", status="diverged", marks=180)
    json.dumps(curve_data(bad := find_runs([tmp_path / "bad"]), curves_of(bad)), allow_nan=False)


def test_a_figure_is_put_in_without_its_addresses(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().set_title("<winner>")
    figure.savefig(tmp_path / "a.svg", metadata={"Date": None})
    write_record(tmp_path / "run")
    text = page_text(find_runs([tmp_path / "run"]), figures=[(tmp_path / "a.svg").read_text()])
    assert '<div class="figure"><svg' in text
    assert "<metadata" not in text
    assert "DOCTYPE svg" not in text
    assert not re.findall(r'https?://(?!www\.w3\.org/(?:2000/svg|1999/xlink)")[^\s"]+', text)
