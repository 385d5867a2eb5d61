"""Check the prose of pages and docstrings: short sentences, few idioms, arguments described by nouns, no long lines.

The gates follow pages of admired projects: 12 to 17 words a sentence, 1 to 8 % above 30. Necessary, not enough.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
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

DIALECT_PER_10000 = 8
# Docstrings and comments have more idioms, and a reader has no other page to decode them.
DIALECT = IDIOMS | {
    "those as a noun": r"\b(?:that|those) (?:of|in|on|at|with|who|that|which|from|by)\b",
    "what stands, what makes": r"\bwhat (?:stands|makes|ends|ended|all|each|one|its|does|can|tells|decides|\w+ed)\b",
    "so many, without as or that": r"\bso (?:many|much|few|long|often)\b(?!,? (?:as|that))",
    "is told": r"\b(?:is|are|was|were|be|been|it|them) told\b|\btells?\b",
    "goes on": r"\b(?:goes|go|going|went|gone) on\b",
    "as well": r"\bas well\b(?! as)",
    "lets go": r"\blets? go\b",
    "however many": r"\bhowever (?:many|much|far|long|often)\b",
    "stands": r"\b(?:stands?|stood)\b(?! for)",
    "comes to": r"\b(?:comes?|came|coming) (?:to|of)\b",
    "where there is": r"\bwhere there (?:is|are)\b",
    "one's": r"\b(?:one|another|else)'s\b",
}
ARGUMENT = r"(?:^|(?<=[.;] ))`?[a-z_]\w*(?:, [a-z_]\w*)*`?: "
NO_NOUN = (
    r"(?:of|by|for|in|with|whose|which|what|as|from|before|after|at|on|to|under|where|when|who|how|only|those|that)\b"
)
NO_VERB = r"(?:The|An?|Its?|Time|One|All|Both|Some|What|Whether|Where|When|How|Who|Which|That|Those|Of|For|In|By|As)\b"


@cache
def rooms() -> dict[str, list[Path]]:
    """Return the files of each room of dsgd/; those at its top are the room `dsgd`."""
    top = ROOT / "dsgd"
    paths: dict[str, list[Path]] = {}
    for path in sorted(top.rglob("*.py")):
        paths.setdefault("dsgd" if path.parent == top else path.relative_to(top).parts[0], []).append(path)
    return paths


@cache
def docstrings(room: str) -> list[tuple[str, str]]:
    """Return (kind, text) of each docstring in a room; kind: function, or another kind of node."""
    nodes = [node for path in rooms()[room] for node in ast.walk(ast.parse(path.read_text()))]
    found: list[tuple[str, str]] = []
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            found += [("function" if function else "other", text)] if text else []
    return found


def comments(room: str) -> list[str]:
    """Return the comments of a room, without the marks of linters."""
    read = (tokenize.generate_tokens(io.StringIO(path.read_text()).readline) for path in rooms()[room])
    return [token.string.lstrip("# ") for tokens in read for token in tokens if token.type == tokenize.COMMENT]


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


@each_row("room", sorted(rooms()))
def test_sentences_of_docstrings_are_short(room: str) -> None:
    words = sorted(lengths([block for _, text in docstrings(room) for block in prose(text)]))
    assert sum(words) / len(words) <= MEAN
    assert sum(count > LONG for count in words) / len(words) <= LONG_SHARE


@each_row("room", sorted(rooms()))
def test_arguments_are_described_by_nouns(room: str) -> None:
    """`path: file to read`, not `path: of the file`: the description is read without the name before it."""
    blocks = [block for _, text in docstrings(room) for block in prose(text)]
    assert [found for block in blocks for found in re.findall(f"{ARGUMENT}{NO_NOUN}.{{0,40}}", block)] == []


@each_row("room", sorted(rooms()))
def test_docstrings_of_functions_begin_with_a_verb(room: str) -> None:
    assert [text for kind, text in docstrings(room) if kind == "function" and re.match(NO_VERB, text)] == []


def test_idioms_are_rare_in_docstrings() -> None:
    """All idioms together, comments included: a pattern also meets a few sentences that are plain."""
    text = "\n".join([block for room in rooms() for _, text in docstrings(room) for block in prose(text)])
    text += "\n".join(comment for room in rooms() for comment in comments(room))
    counts = {name: len(re.findall(idiom, text, re.IGNORECASE | re.MULTILINE)) for name, idiom in DIALECT.items()}
    assert sum(counts.values()) * 10_000 <= DIALECT_PER_10000 * len(text.split()), counts


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= README


def test_pending_pages_exist() -> None:
    assert sorted(PENDING - set(pages())) == []
