"""Stage the documentation site: docs/, and the repository files that pages link to.

    python scripts/stage_docs.py build/docs      # then: zensical build --strict -f build/zensical.toml; or: make docs

A link that leaves docs/ leads to a copy: a Markdown page stays a page, an image an image; other text is shown as code.
The site's search finds the pages of docs/, not such copies. mkdocstrings reads the Python API.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".h": "c", ".c": "c", ".sh": "bash", ".def": "text", ".ipynb": "json"}
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"


def main(folder: Path) -> None:
    """Write the staged pages into `folder`, and zensical.toml beside it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.toml"))
    for page in sorted(folder.rglob("*.md")):
        mend_links(page, ROOT / "docs" / page.relative_to(folder), folder)
    shutil.copy(ROOT / "docs" / "zensical.toml", folder.parent)


def mend_links(page: Path, source: Path, folder: Path) -> None:
    """Have the links of a staged page lead to staged copies. source: where the page stands in the repository."""

    def mended(match: re.Match[str]) -> str:
        text, target, anchor = match["text"], match["target"], match["anchor"] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = Path(os.path.normpath(source.parent / target))
        if path.is_relative_to(ROOT / "docs"):
            page_there = folder / path.relative_to(ROOT / "docs")
            return f"{text}({os.path.relpath(page_there, page.parent)}{anchor})"
        if path.is_dir() and (path / "README.md").is_file():
            path = path / "README.md"
        if not path.is_file():
            return text.strip("[]") if path.is_dir() else match[0]  # a missing file: the strict build names it
        staged = stage(path, folder)
        return f"{text}({os.path.relpath(staged, page.parent)}{anchor if path.suffix == '.md' else ''})"

    page.write_text(LINK.sub(mended, page.read_text()))


def stage(path: Path, folder: Path) -> Path:
    """Copy a file of the repository under files/, as something a browser shows; return the copy."""
    name = path.relative_to(ROOT)
    if path.suffix in (".png", ".svg", ".md"):
        staged = folder / "files" / name
    else:
        staged = folder / "files" / name.with_name(f"{name.name}.md")
    if staged.exists():
        return staged
    staged.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".png", ".svg"):
        shutil.copy(path, staged)
    elif path.suffix == ".md":
        staged.write_text(UNSEARCHED + path.read_text())
        mend_links(staged, path, folder)
    else:
        code = f"````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text().rstrip()}\n````\n"
        staged.write_text(f"{UNSEARCHED}# {name}\n\n{code}")
    return staged


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
