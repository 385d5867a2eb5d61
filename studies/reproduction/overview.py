"""Write the overview of all papers: claims about learning and about time, and exact properties."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import yaml

from studies.reproduction.criterion import ClaimKind
from studies.reproduction.pages import QUICK, Results, measured_line, table, write_page
from studies.reproduction.paper import Claim
from studies.reproduction.verdict import ON_A_TASK, Verdict

OVERVIEW = "README.md"

TEXTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
PaperClaim = tuple[Results, Claim]


def write_overview(all_results: Sequence[Results], results: Path) -> str:
    """Write the tables of all claims into an existing folder. Returns the score, a line for each kind."""
    entries = [(result, claim) for result in all_results for claim in result.paper.claims]
    lines = score(entries)
    quick = [QUICK] if any(result.pipelines.quick for result in all_results) else []
    parts = [TEXTS["introduction"], *quick, "\n".join(f"- {line}" for line in lines)]
    for kind in (ClaimKind.LEARNING, ClaimKind.TIME, ClaimKind.EXACT):
        rows = [_row(*entry) for entry in entries if entry[1].statement.kind is kind]
        if rows:
            parts += [TEXTS[kind], table(["", "claim", "measured", "threshold", "outcome"], rows)]
    write_page(results / OVERVIEW, parts)
    return "\n".join(lines)


def score(entries: Sequence[PaperClaim]) -> list[str]:
    """Return how many claims came to what: about time, about learning on each task, exact: `About time, 8: 3 PASS`."""
    time, exact = (
        [result.findings[claim.id].verdict for result, claim in entries if claim.statement.kind is kind]
        for kind in (ClaimKind.TIME, ClaimKind.EXACT)
    )
    learning: dict[str, list[str]] = defaultdict(list)
    for result, claim in entries:
        for task, finding in result.on_tasks[claim.id].items():
            about = f"About learning, on {TEXTS['tasks'].get(task, task)}"
            learning[about].append(ON_A_TASK.get(finding.verdict, str(finding.verdict)))
    counted = {"About time": time, **learning, "Exact properties": exact}
    return [f"{name}: {_counted(verdicts)}" for name, verdicts in counted.items() if verdicts]


def _counted(verdicts: Sequence[str]) -> str:
    order = [*Verdict, *dict.fromkeys(ON_A_TASK.values())]
    counts = Counter(verdicts)
    return f"{len(verdicts)} claims, {', '.join(f'{counts[word]} {word}' for word in order if counts[word])}"


def _row(result: Results, claim: Claim) -> list[str]:
    """Return the row of a claim: what it says, what was measured, and what came out."""
    finding, stated = result.findings[claim.id], claim.statement
    link = f"[{claim.id}]({result.paper.key}.md#{claim.id.lower()})"
    return [link, stated.text, measured_line(finding), stated.passes, f"**{finding.verdict}**"]
