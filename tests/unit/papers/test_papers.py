"""All papers: docs/explanation/papers.md lists their claims, and each shows what it has."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from studies.papers import CLAIMS as STATEMENTS
from studies.papers import RUNS, SETTINGS, papers
from studies.reproduction.grouped_rows import flat_rows

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "explanation" / "papers.md"
CLAIMS = {
    *("J1", "J2", "J3", "J4", "J5", "J6", "L1", "L2", "L3a", "L3b", "L4", "L5", "L6", "L7", "L8"),
    *("T1", "T2", "T4", "T5", "T6", "T7"),
    *("E1", "E2", "E3", "E4", "E5", "E6", "A1", "A2", "A3", "A4", "A5", "G5"),
    *("B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B9", "B10", "B11a", "B11b", "B12a", "B12b"),
    *("D1", "D2", "D3", "D4", "D5", "D6", "D7", "D8", "D9", "D10", "D11", "D12", "D13"),
}


PAPERS = papers()


def table() -> str:
    """Return the table of claims in docs/explanation/papers.md; `python -m tests.unit.papers.test_papers` prints it."""
    lines = ["| claim | in our words | source | passes with |", "|---|---|---|---|"]
    lines += [f"| {id} | {one.text} | {one.source} | {one.passes} |" for id, one in STATEMENTS.items()]
    return "\n".join(lines)


def test_every_claim_is_there_once() -> None:
    ids = Counter(claim.id for paper in PAPERS for claim in paper.claims)
    assert {*ids} == CLAIMS == {*STATEMENTS}
    assert max(ids.values()) == 1


def test_the_document_has_the_statements_as_they_are() -> None:
    """A threshold that moves after a measurement moves in a document that is not drawn again."""
    assert table() in DOCUMENT.read_text()


def test_a_paper_is_called_like_its_file_and_shows_what_it_has() -> None:
    folder = ROOT / "studies" / "papers"
    for paper in PAPERS:
        module = folder / paper.key
        assert module.with_suffix(".py").is_file() or module.is_dir()
        names = [chart.name for chart in paper.charts]
        assert len({*names}) == len(names)
        used = {name for claim in paper.claims for name in claim.studies}
        used |= {name for chart in paper.charts for name in chart.studies}
        assert used == {study.name for study in paper.studies}
        assert names == [*SETTINGS[paper.key].get("charts", {})]
        assert len(paper.studies) == len([*flat_rows(RUNS[paper.key])] if paper.studies else ())


def test_pages_tell_a_paper_s_sentence_and_conditions_from_ours() -> None:
    for paper in PAPERS:
        page = (ROOT / "results" / "papers" / f"{paper.key}.md").read_text()
        for claim in paper.claims:
            section = page.partition(f"\n### {claim.id}\n")[2].partition("\n##")[0]
            known = claim.statement.conditions
            lines = [] if known is None else [f"- Published: {known.published}", f"- There: {known.there}"]
            lines += [] if known is None else [f"- Here: {known.here}", "- Threshold: "]
            assert section
            assert all(f"\n{line}" in section for line in lines)


def test_every_page_says_what_was_shown_and_links_to_what_there_is() -> None:
    for page in (ROOT / "results" / "papers").glob("*.md"):
        text = page.read_text()
        for target in re.findall(r"\]\(([^)#]+)", text):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


if __name__ == "__main__":
    print(table())
