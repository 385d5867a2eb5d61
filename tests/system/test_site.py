"""The documentation site builds without a warning, and a browser shows it at both widths, in both colours."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path

from tests.support.browser import PATIENCE_S, browsed, find_browser

ROOT = Path(__file__).parents[2]
PAGES = ("index.html", "explanation/fast_simulator.html", "reference/keys.html", "reference/algorithms/diloco.html")
WHOLE = ("index.html", "reference/keys.html")  # whose tables fit, too; a table of numbers may scroll
WIDTHS = (1200, 400)  # pixels: a screen, a telephone
# What a page says of itself: elements that reach beyond the window, or tables within what scrolls, its colour scheme,
# its background.
LOOK = """
addEventListener("load", () => {
    const wide = document.documentElement.scrollWidth > innerWidth + 1;
    const tables = [...document.querySelectorAll(".md-typeset table")];
    const cut = tables.some(table => table.getBoundingClientRect().right > innerWidth);
    const scheme = document.body.getAttribute("data-md-color-scheme");
    console.log(JSON.stringify({wide, cut, scheme, background: getComputedStyle(document.body).backgroundColor}));
});
"""


# Words that a reader may search, and the page that one of the first three results must be on.
SEARCHED = {
    "cite": "howto/questions",
    "early stopping": "howto/questions",
    "memory": "reference/memory",
    "slow_nodes": "howto/cluster",
    "cluster.slow_nodes": "reference/keys",
    "worker_steps": "reference/record",
}
# Type each word into the search, wait for its results, say the first three pages. The results are in shadow roots.
SEARCH = """
const wait = ms => new Promise(done => setTimeout(done, ms));
const all = root => [...root.querySelectorAll("*")].flatMap(e => e.shadowRoot ? [e, ...all(e.shadowRoot)] : [e]);
const until = async look => { let got; while (!(got = look())) await wait(50); return got; };
const results = () => all(document).filter(e => e.tagName == "A" && e.getRootNode() != document).map(e => e.pathname);
addEventListener("DOMContentLoaded", async () => {
    const input = await until(() => {
        document.querySelector(".md-search__button").click();
        return all(document).find(e => e.tagName == "INPUT" && e.getRootNode() != document);
    });
    for (const word of WORDS) {
        const before = results().join();
        input.value = word;
        input.dispatchEvent(new Event("input", {bubbles: true}));
        await until(() => results().length && results().join() != before);
        console.log(results().slice(0, 3).join(" "));
    }
    fetch("/searched");
});
"""


class Site(SimpleHTTPRequestHandler):
    """Serves the site. `/held`, an image, is answered after `/searched`: a page ends when all of it is loaded."""

    searched = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/searched":
            self.searched.set()
        if self.path == "/held":
            self.searched.wait(PATIENCE_S)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_the_site_builds_strictly_and_shows_in_a_browser(tmp_path: Path) -> None:
    find_browser()
    stage = [sys.executable, str(ROOT / "scripts" / "stage_docs.py"), str(tmp_path / "docs")]
    subprocess.run(stage, check=True, cwd=ROOT, timeout=PATIENCE_S)
    config = (tmp_path / "zensical.toml").read_text()
    (tmp_path / "zensical.toml").write_text(config.replace('paths = [".."]', f"paths = [{str(ROOT)!r}]"))
    build = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "-f", "zensical.toml"]
    built = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert built.returncode == 0, built.stdout + built.stderr

    site = tmp_path / "site"
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Site, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        looks = list(product(PAGES, WIDTHS, (False, True)))
        backgrounds = {look: _look(site, server.server_port, *look) for look in looks}
        found = _found(site, server.server_port)
    finally:
        server.shutdown()
        server.server_close()
    assert {word: pages for word, pages in found.items() if SEARCHED[word] not in pages} == {}
    assert all(backgrounds[*look, False] != backgrounds[*look, True] for look in product(PAGES, WIDTHS))


def _look(site: Path, port: int, page: str, width: int, dark: bool) -> str:
    """Open a page and return its background. The page fits the window, and loads only files of the site."""
    path = site / page
    text = path.read_text()
    assert re.findall(r'(?:src|<link[^>]* href)="(?:https?:)?//[^"]*', text) == []
    tried = path.with_name(f"tried_{width}_{dark}.html")
    tried.write_text(text.replace("</body>", f"<script>{LOOK}</script></body>"))
    address = f"http://127.0.0.1:{port}/{tried.relative_to(site)}"
    _, console = browsed(address, site.parent / f"browser_{width}_{dark}", width=width, dark=dark)
    (line,) = console
    assert '"wide":false' in line.replace("\\", "")
    assert '"cut":false' in line.replace("\\", "") or page not in WHOLE
    assert f'"scheme":"{"slate" if dark else "default"}"' in line.replace("\\", "")
    return line.rpartition("background")[2]


def _found(site: Path, port: int) -> dict[str, str]:
    """Return the first three pages that the site's search finds for each word."""
    script = SEARCH.replace("WORDS", json.dumps(list(SEARCHED)))
    tried = site / "tried_search.html"
    tried.write_text(
        (site / "index.html").read_text().replace("</body>", f'<img src="/held"><script>{script}</script></body>')
    )
    _, console = browsed(f"http://127.0.0.1:{port}/{tried.name}", site.parent / "browser_search", in_real_time=True)
    return dict(zip(SEARCHED, console, strict=True))
