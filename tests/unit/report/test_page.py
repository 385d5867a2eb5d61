"""The page of `dsgd-plot --html`: whole, safe with names of any kind, and working in a browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dsgd.cli.plot import main
from dsgd.record.reader import find_runs
from dsgd.report.contest import Contender, contest
from dsgd.report.contest_figure import contender_series, contender_styles
from dsgd.report.contest_files import page_figures
from dsgd.report.curves import MANY
from dsgd.report.inline_svg import dark_colours, inline, marker_path, on_dark
from dsgd.report.labels import series
from dsgd.report.page import MOST_POINTS, PageCurves, curve_data, curves_of, page_text, write_page
from dsgd.report.style import curve_styles
from tests.support.browser import opened
from tests.support.contenders import contender
from tests.support.records import ALGORITHMS, write_all, write_record

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
    write_page(find_runs([folder / "runs"]), folder / "page.html", lead=f"{HOSTILE}\nsecond")
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


def test_what_is_below_the_table_keeps_its_lines(tmp_path: Path) -> None:
    write_record(tmp_path / "a")
    text = page_text(find_runs([tmp_path]))
    (note,) = re.findall(r'<p class="note">(times: .*?)</p>', text, re.DOTALL)
    assert note.splitlines()[-1].startswith("setting: ")
    assert "\\n" not in note


def test_environments_that_runs_share_are_said_once(tmp_path: Path) -> None:
    for name, host in (("a", "one"), ("b", "one"), ("c", "two")):
        write_record(tmp_path / name)
        (tmp_path / name / "env.json").write_text(json.dumps({"host": host, "command": [name], "devices": ["cpu"]}))
    rows = Elements(page_text(find_runs([tmp_path]))).rows
    assert rows[-3:] == [["", "2 runs", "gossip"], ["host", "one", "two"], ["devices", "cpu", "cpu"]]
    (tmp_path / "a" / "env.json").write_text("[")
    with pytest.raises(ValueError, match=r"env\.json is not a JSON object$"):
        page_text(find_runs([tmp_path]))


def test_curves_have_the_colours_of_the_figures_and_an_end(tmp_path: Path) -> None:
    """Long ones are thinned out, their first and last mark stay; losses that explode stay numbers."""
    runs = write_all(tmp_path)
    gathered = series(runs)
    data = curve_data(runs, curves_of(runs))
    colours = {one.label: style["color"] for one, style in zip(gathered, curve_styles(gathered), strict=True)}
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


def test_a_page_of_runs_without_any_number_is_still_one(tmp_path: Path) -> None:
    write_record(tmp_path / "a", timing_only=True, status="running", marks=0)
    assert "</html>" in page_text(find_runs([tmp_path]))


@pytest.mark.parametrize(("light", "dark"), [("#000000", "#e6e6e6"), ("#56b4e9", "#56b4e9")])
def test_a_dark_ground_has_light_colours(light: str, dark: str) -> None:
    assert on_dark(light) == dark


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


def test_the_legend_is_in_the_order_of_the_ranking(tmp_path: Path) -> None:
    """That of the table; a comparison's in that of its verdict, with the styles of its figure."""
    runs = write_all(tmp_path)
    text = page_text(runs)
    assert [one["label"] for one in data_of(text)["series"]] == [row[0] for row in Elements(text).rows[1:7]]
    found = contest(
        [contender("sync, tau=1", [40.0]), contender("gossip, tau=1", [10.0]), contender("gossip, tau=4", [20.0])]
    )
    curves = PageCurves(contender_series(found), contender_styles(found))
    data = data_of(page_text(found.runs, curves=curves))["series"]
    assert [one["label"] for one in data] == ["gossip, tau=1", "gossip, tau=4", "sync, tau=1"]
    assert data[0]["light"] == data[1]["light"] != data[2]["light"]
    assert data[0]["dash"] != data[1]["dash"]
    assert data[0]["marker"] != data[1]["marker"] == marker_path(contender_styles(found)[1]["marker"])


def test_colours_of_a_figure_are_variables_that_the_dark_exchanges() -> None:
    """White is the ground, black and greys are turned round, colours keep their hue; names do not meet."""
    path = '<path id="b" style="fill: #ffffff; stroke: #0b3c8c"/>'
    svg = f'<svg id="a">{path}<use href="#b" style="stroke: #dddddd"/></svg>'
    first, second = inline(svg, 0), inline(svg, 1)
    assert "fill: var(--c-ffffff, #ffffff); stroke: var(--c-0b3c8c, #0b3c8c)" in first
    assert 'id="f0-b"' in first
    assert 'href="#f0-b"' in first
    assert 'href="#f1-b"' in second
    blue = f"--c-0b3c8c: {on_dark('#0b3c8c')};"
    assert dark_colours(first + second) == f"{blue} --c-dddddd: #363636; --c-ffffff: var(--back);"


def test_the_command_writes_the_page_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_record(tmp_path / "runs" / "a")
    page = tmp_path / "new" / "page.html"
    assert main([str(tmp_path / "runs"), "--html", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert list((tmp_path / "new").iterdir()) == [page]
    assert main([str(tmp_path / "runs"), "--html", str(tmp_path / "runs")]) == 2
    assert capsys.readouterr().err.startswith("dsgd-plot: --html must be a file, got the folder ")
    assert main([str(tmp_path / "runs"), "--html", str(page), "--y", "test_error"]) == 2
    assert "--html must not be given with --y" in capsys.readouterr().err


SCRIPT = """
const said = {};
const heading = text => [...document.querySelectorAll('#configurations th')].find(th => th.textContent === text);
const column = text => [...document.querySelectorAll('#configurations tbody tr')]
  .map(row => row.cells[heading(text).cellIndex].textContent);
const click = text => heading(text).firstElementChild.click();
click('time (s)'); said.up = column('time (s)');
click('time (s)'); said.down = column('time (s)');
click('run'); said.names = column('run');
const panel = document.querySelector('#panels svg');
const lines = () => panel.querySelectorAll('polyline').length;
said.lines = [lines()];
document.querySelector('#lines input').click(); said.lines.push(lines());
document.querySelector('#lines input').click(); said.lines.push(lines());
const ticks = () => [...panel.querySelectorAll('text')].map(text => text.textContent).join(' ');
said.ticks = [ticks()];
const frame = panel.getBoundingClientRect();
const at = (name, x, y) => panel.dispatchEvent(new PointerEvent(name,
  { clientX: frame.left + x, clientY: frame.top + y, pointerId: 1, bubbles: true }));
at('pointerdown', 100, 60); at('pointermove', 180, 140); at('pointerup', 180, 140);
said.ticks.push(ticks());
panel.dispatchEvent(new MouseEvent('dblclick', { bubbles: true }));
said.ticks.push(ticks());
document.querySelectorAll('#axes input')[1].click();
said.ticks.push(ticks());
said.wide = document.documentElement.scrollWidth <= innerWidth;
said.title = document.title;
console.log('said');
document.body.append(Object.assign(document.createElement('pre'), { id: 'said', textContent: JSON.stringify(said) }));
"""


def test_in_a_browser_it_sorts_toggles_and_zooms(tmp_path: Path) -> None:
    """Without an error on the console, and without running what a name says."""
    document, console = opened(hostile_page(tmp_path), SCRIPT, tmp_path)
    assert console == ["said"]
    rows = Elements(document).rows
    said = said_of(document)
    seconds = [float(text.split()[0]) for text in said["up"]]
    assert seconds == sorted(seconds)
    assert len(set(seconds)) >= 3
    assert [float(text.split()[0]) for text in said["down"]] == sorted(seconds, reverse=True)
    assert said["names"] == sorted(said["names"])
    assert len(rows) > 5
    assert said["lines"] == [4, 3, 4]
    whole, zoomed, again, epochs = said["ticks"]
    assert whole == again != zoomed
    assert "epochs" in epochs
    assert said["wide"]
    assert said["title"] != "7"


NARROW = """
const said = {};
const colour = (element, name) => getComputedStyle(element)[name];
said.scrolls = document.documentElement.scrollWidth > innerWidth;
said.tables = [...document.querySelectorAll('.wide')].map(box => box.scrollWidth > box.clientWidth);
const figures = [...document.querySelectorAll('.figure svg')];
said.widths = figures.map(svg => svg.getBoundingClientRect().width);
said.tops = figures.map(svg => svg.getBoundingClientRect().top);
said.letters = figures.map(svg => Math.min(...[...svg.querySelectorAll('g[id*="-text_"]')]
  .filter(text => text.getBoundingClientRect().width > 0)
  .map(text => [...text.querySelectorAll('use')].map(use => use.getBoundingClientRect().height))
  .map(heights => Math.max(...heights))));
said.curves = Math.min(...[...document.querySelectorAll('#panels text')]
  .map(text => parseFloat(colour(text, 'fontSize'))));
said.back = colour(document.body, 'backgroundColor');
said.figure_back = colour(figures[0].querySelector('path'), 'fill');
said.ink = colour(figures[0], 'fill');
const panel = document.querySelector('#panels svg');
const bands = () => panel.querySelectorAll('polygon').length;
said.bands = [bands()];
document.querySelector('#lines input').click();
said.bands.push(bands());
said.marks = panel.querySelectorAll('path.mark').length;
console.log('said');
document.body.append(Object.assign(document.createElement('pre'), { id: 'said', textContent: JSON.stringify(said) }));
"""


def page_of_many(folder: Path) -> Path:
    """A comparison of six contenders, with its figures."""
    contenders = []
    for algo in ALGORITHMS:
        runs = find_runs([write_record(folder / f"{algo}{seed}", algo, seed=seed) for seed in range(3)])
        contenders.append(Contender(algo, algo, 8, runs, {}, None, 0))
    found = contest(contenders)
    curves = PageCurves(contender_series(found), contender_styles(found))
    write_page(found.runs, folder / "page.html", "A verdict.", page_figures(contenders), curves=curves)
    return folder / "page.html"


def said_of(document: str) -> Any:
    found = re.search(r'<pre id="said">(.*?)</pre>', document, flags=re.DOTALL)
    assert found is not None
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


@pytest.mark.parametrize("width", [500, 1400])
@pytest.mark.parametrize("dark", [False, True])
def test_a_page_fits_its_window_and_follows_the_dark(width: int, dark: bool, tmp_path: Path) -> None:
    """Figures take the width that there is, one below the other where it is small; tables scroll by themselves."""
    document, console = opened(page_of_many(tmp_path), NARROW, tmp_path, width, dark)
    assert console == ["said"]
    said = said_of(document)
    assert not said["scrolls"]
    assert said["tables"][0] or width == 1400
    assert all(0.4 * width < each <= width for each in said["widths"])
    assert (said["tops"][0] == said["tops"][1]) == (width == 1400)
    assert min(said["letters"]) >= 6  # of a capital or a digit: letters of 9 pixels
    assert said["curves"] >= 12
    assert said["figure_back"] == said["back"] == ("rgb(21, 23, 26)" if dark else "rgb(255, 255, 255)")
    assert said["ink"] == ("rgb(232, 230, 227)" if dark else "rgb(27, 27, 27)")
    assert said["bands"] == [0, MANY - 1]  # once fewer lines are shown
    assert said["marks"] >= MANY - 1


def test_the_test_of_a_browser_sees_errors(tmp_path: Path) -> None:
    """Guards the reading of the console above."""
    write_record(tmp_path / "run")
    write_page(find_runs([tmp_path / "run"]), tmp_path / "page.html")
    _, console = opened(tmp_path / "page.html", "throw new Error('of the test');", tmp_path)
    assert len(console) == 1
    assert "of the test" in console[0]
