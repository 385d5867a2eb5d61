"""A real browser without a window: what a page looks like to it, after its scripts and some of the test's own."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tests.support.required import need

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_S = 120  # after which a test gives up; nothing is measured with it

# what a script of the test says on the console, or a page's error does
_CONSOLE = re.compile(r'CONSOLE[:(]\d+\)?\] "(.*)", source:')


def find_browser() -> str:
    """The browser's command. Skips the test where there is none; with `browser` in DSGD_REQUIRE it fails."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    need("browser", None if found else f"none of {', '.join(NAMES)} in PATH (Debian: chromium-headless-shell)")
    assert found is not None  # or the test was skipped
    return found


def opened(page: Path, script: str, folder: Path, width: int = 1000, dark: bool = False) -> tuple[str, list[str]]:
    """Open a page from its file, with a script that the test adds at its end.

    Returns the document afterwards, as HTML, and what was said on the console. folder: for what the browser keeps.
    width: of the window, in pixels. dark: the user prefers dark pages."""
    tried = folder / "tried.html"
    head, end, tail = page.read_text().rpartition("</body>")
    tried.write_text(f"{head}<script>{script}</script>{end}{tail}")
    return browsed(tried.as_uri(), folder, width, dark)


def browsed(
    address: str, folder: Path, width: int = 1000, dark: bool = False, in_real_time: bool = False
) -> tuple[str, list[str]]:
    """Open an address; return as `opened` does. in_real_time: else web workers stand still."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions"]
    flags += [f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", f"--window-size={width},1200"]
    flags += ["--blink-settings=preferredColorScheme=0"] * dark
    ended = subprocess.run(
        [find_browser(), *flags, *["--virtual-time-budget=2000"] * (not in_real_time), "--dump-dom", address],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, _CONSOLE.findall(ended.stderr)
