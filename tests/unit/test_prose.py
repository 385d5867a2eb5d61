"""Check the prose of every page: short sentences, few idioms, no long lines.

The gates follow pages of admired projects: 12 to 17 words a sentence, 1 to 8 % above 30. Necessary, not enough.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.support.each_row import each_row

ROOT = Path(__file__).parents[2]
MEAN, TENTH_LONGEST, LONG, LONG_SHARE, IDIOMS_PER_10000, LINE, README = 17, 28, 30, 0.05, 3, 120, 900
FEWEST = 8  # sentences of a page below which shares mean nothing
# Pages that are still to be rewritten. The list may only shrink.
PENDING = {"CHANGELOG.md"}
IDIOMS = {
    "what is, was, it, a as a noun": r"\bwhat (?:is|was|it|a|they|he|has|had|comes|came)\b(?![^.!?\n]*\?)",
    "that of, those of": r"\b(?:that|those) of\b",
    "of which, by which, to whom": r"\b(?:of|by|with|to) (?:which|whom)\b",
    "nobody, everybody, anybody": r"\b(?:nobody|everybody|anybody|somebody)\b",
    "beside": r"\bbesides?\b",
    "whoever, whatever": r"\b(?:whoever|whatever|whichever)\b",
    "who has, who is as a noun": r"(?:^|[.;:] )who (?:has|is|wants|comes|gets)\b",
    ", too": r", too\b",
    "is none": r"\bis none\b|\bthat is no\b",
    "anew": r"\banew\b",
    "in the midst": r"\bin the midst\b",
}


@cache
def pages() -> list[str]:
    """Return the Markdown pages, but for those that scripts write: from logged runs, from conf/ and docstrings."""
    found = {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")}
    written = {
        *ROOT.glob("docs/reference/algorithms/*"),
        *(ROOT / "docs/reference" / f"{name}.md" for name in ("keys", "commands")),
    }
    return sorted(str(path.relative_to(ROOT)) for path in found - written)


def prose(text: str) -> list[str]:
    """Return the paragraphs and list items of a page, without code, tables, headings, images and link targets."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    blocks: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.splitlines() if not re.match(r"    |#|\||:::|<", line)]
        for line in lines:
            if blocks and blocks[-1] and not re.match(r"\s*(?:[-*]|\d+\.) ", line):
                blocks[-1] += f" {line.strip()}"
            else:
                blocks.append(line.strip())
        blocks.append("")
    return [block for block in blocks if block]


def lengths(blocks: list[str]) -> list[int]:
    """Return the words of each sentence."""
    sentences = (part for block in blocks for part in re.split(r"(?<=[.!?:])[*_\")]*\s+", block))
    counts = (len([word for word in part.split() if re.search(r"\w", word)]) for part in sentences)
    return [count for count in counts if count > 1]


@each_row("page", [page for page in pages() if page not in PENDING])
def test_sentences_are_short(page: str) -> None:
    words = sorted(lengths(prose((ROOT / page).read_text())))
    if len(words) < FEWEST:
        assert max(words, default=0) <= 2 * LONG
        return
    assert sum(words) / len(words) <= MEAN
    assert words[int(0.9 * len(words))] <= TENTH_LONGEST
    assert sum(count > LONG for count in words) / len(words) <= LONG_SHARE


def test_idioms_are_rare() -> None:
    """Over all pages together: a short page may use one once."""
    text = "\n".join(block for page in pages() if page not in PENDING for block in prose((ROOT / page).read_text()))
    words = len(text.split())
    counts = {name: len(re.findall(idiom, text, re.IGNORECASE | re.MULTILINE)) for name, idiom in IDIOMS.items()}
    assert {name: count for name, count in counts.items() if count * 10_000 > IDIOMS_PER_10000 * words} == {}


@each_row("page", [page for page in pages() if page not in PENDING])
def test_lines_fit_a_screen(page: str) -> None:
    """Rows of tables and commands, which cannot be broken, may be longer."""
    lines = (ROOT / page).read_text().splitlines()
    assert [line for line in lines if len(line) > LINE and not line.startswith(("|", "    ", "![", "  |"))] == []


@each_row("page", pages())
def test_lists_begin_after_a_blank_line(page: str) -> None:
    """Python-Markdown takes a list for text otherwise."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^(?![-*\s|#>]|\d+\. )\S.*\n(?:- |\* |1\. ).*", text, flags=re.MULTILINE) == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= README


def test_pending_pages_exist() -> None:
    assert sorted(PENDING - set(pages())) == []
