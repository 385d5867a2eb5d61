"""Thresholds are read from lines of text, and hold where they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsgd.report.interval import Estimate
from studies.reproduction.criterion import Conditions, Criterion, Statement, read_statements
from studies.reproduction.verdict import Check, Verdict, at_least, at_most, close, within
from tests.support.each_row import each_row

SEEDS = Estimate(1.15, 1.12, 1.2, 5)
ENTRY = """
X1:
  kind: time
  claim: It is faster
  source: X
  passes: "p = 8: >= {faster} times, bytes {bytes_to} within {bytes}"
  criteria: {faster: "FASTER", bytes: within 1 % of 10}
"""
PUBLISHED = """
  published: '"It is twice as fast" (section 2)'
  there: ResNet-50, 8 GPUs
  here: an MLP
  threshold_of: "ours: a tenth is worth a change"
"""


@each_row(
    ("text", "check"),
    [
        ("at_least 1.10", at_least("x", SEEDS, 1.1)),
        ("at_most 5 %", at_most("x", SEEDS, 0.05)),
        ("from -0.1 to 1.3", within("x", SEEDS, -0.1, 1.3)),
        ("no_worse_by 0.5 points", at_least("x", SEEDS, -0.005)),
    ],
)
def test_a_line_is_the_check_that_it_says(text: str, check: Check) -> None:
    assert Criterion.parse(text).check("x", SEEDS) == check


def test_a_tolerance_is_a_share_or_a_difference() -> None:
    assert Criterion.parse("within 3 % of 10").check("x", 10.2) == close("x", 10.2, 10, relative=0.03)
    assert Criterion.parse("within 0.1").check("x", 10.2, 10) == close("x", 10.2, 10, absolute=0.1)


@each_row(
    "text", ["at_least", "at_least x", "nearly 1", "from 1", "above 1 of 2", "at_least 1.1 to 2", "within 1 % of"]
)
def test_another_line_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^a criterion must be one of at_least, .*, got"):
        Criterion.parse(text)


def test_what_the_measurement_is_must_go_with_the_kind() -> None:
    with pytest.raises(ValueError, match="`within` must have a number without an interval"):
        Criterion.parse("within 1 % of 1").check("x", SEEDS)
    with pytest.raises(ValueError, match="one that is expected"):
        Criterion.parse("within 1 %").check("x", 1.0)


def test_the_sentence_has_the_numbers_by_which_a_claim_is_judged(tmp_path: Path) -> None:
    """A threshold that moves, moves in the sentence and in the verdict."""
    for number, verdict in (("1.1", Verdict.PASS), ("1.25", Verdict.FAIL)):
        path = tmp_path / "claims.yaml"
        path.write_text(ENTRY.replace("FASTER", f"at_least {number}") + PUBLISHED)
        claim = read_statements(path)["X1"]
        assert claim.passes == f"p = 8: >= {number} times, bytes 10 within 1 %"
        assert claim.check("faster", "ratio", SEEDS).verdict is verdict


WHOLE = ENTRY.replace("FASTER", "at_least 1.1") + PUBLISHED


def statement(folder: Path, text: str) -> Statement:
    """Return the statement of a text."""
    path = folder / "claims.yaml"
    path.write_text(text)
    return read_statements(path)["X1"]


def test_a_claim_has_its_sentence_and_its_conditions(tmp_path: Path) -> None:
    assert statement(tmp_path, WHOLE).conditions == Conditions(
        '"It is twice as fast" (section 2)', "ResNet-50, 8 GPUs", "an MLP", "ours: a tenth is worth a change"
    )


def test_an_exact_property_needs_no_sentence(tmp_path: Path) -> None:
    assert statement(tmp_path, ENTRY.replace("FASTER", "above 1").replace("time", "exact")).conditions is None


@each_row(
    ("text", "line"),
    [
        (
            WHOLE.replace("source", "sauce"),
            "X1 must have claim, criteria, here, kind, need, passes, published, reason, source, studies",
        ),
        (WHOLE.replace("  there:", "  where:"), "X1 must have claim, .* there, threshold_of, got"),
        (
            WHOLE.replace("time", "exact").replace("  there:", "  where:"),
            "X1 must have claim, .* there, threshold_of, got",
        ),
        (ENTRY.replace("FASTER", "above 1"), "X1 must have claim, .* published, .*, got"),
        (
            WHOLE.replace(" (section 2)", ""),
            "published must be '\"…\" \\(section\\)', our reading of … or ours: …, got",
        ),
        (WHOLE.replace("ours: a", "mine: a"), "threshold_of must be the paper's, or ours: and a reason, got"),
    ],
)
def test_an_incomplete_statement_is_refused(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        statement(tmp_path, text)
