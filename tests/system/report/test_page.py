"""The page of `dsgd-plot --html` in a browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dsgd.comparison.comparison_figure import contender_series, page_figures
from dsgd.comparison.contenders import Contender, rank_contenders
from dsgd.record.reader import find_runs
from dsgd.report.curves import MANY
from dsgd.report.page import page_text
from tests.support.browser import opened
from tests.support.records import ALGORITHMS, write_record
from tests.unit.report.test_page import Elements, hostile_page

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
        contenders.append(Contender(algo, runs, chosen={}, works=None, spent=0))
    found = rank_contenders(contenders)
    curves = contender_series(found)
    (folder / "page.html").write_text(page_text(found.runs, "A verdict.", page_figures(contenders), curves))
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
    (tmp_path / "page.html").write_text(page_text(find_runs([tmp_path / "run"])))
    _, console = opened(tmp_path / "page.html", "throw new Error('of the test');", tmp_path)
    assert len(console) == 1
    assert "of the test" in console[0]
