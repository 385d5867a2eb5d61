"""Write the overview of all papers: claims about learning and about time, and exact properties."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import yaml

from studies.evidence.forecast import forecast
from studies.evidence.paired_t import REPLICATES
from studies.reproduction.criterion import ClaimKind
from studies.reproduction.pages import QUICK, Results, archive_parts, measured_line, table, write_page
from studies.reproduction.paper import Claim
from studies.reproduction.verdict import ON_A_TASK, Finding, Verdict, listed

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
    if all_results:
        parts += archive_parts(all_results[0].pipelines)
    write_page(results / OVERVIEW, parts)
    return "\n".join(lines)


def score(entries: Sequence[PaperClaim]) -> list[str]:
    """Return how many claims came to what: about time, about learning on each task, exact: `About time, 8: 3 PASS`."""
    time, exact = (
        [result.findings[claim.id].verdict for result, claim in entries if claim.statement.kind is kind]
        for kind in (ClaimKind.TIME, ClaimKind.EXACT)
    )
    learning: dict[str, list[str]] = defaultdict(list)
    unfinished = Counter[str]()
    for result, claim in entries:
        for task, finding in result.on_tasks[claim.id].items():
            about = f"About learning, on {TEXTS['tasks'].get(task, task)}"
            learning[about].append(ON_A_TASK.get(finding.verdict, str(finding.verdict)))
            unfinished[about] += _is_unfinished(finding)
        if result.on_tasks[claim.id]:
            learning["About learning, on all tasks"].append(result.findings[claim.id].verdict)
    counted = {"About time": time, **dict(sorted(learning.items())), "Exact properties": exact}
    return [f"{name}: {_counted(verdicts, unfinished[name])}" for name, verdicts in counted.items() if verdicts]


def _is_unfinished(finding: Finding) -> bool:
    """Return whether a claim is open that more replicates could decide: not where a number is unknown."""
    still = [check.value.count for check in finding.checks if check.verdict is Verdict.INCONCLUSIVE]
    if any(math.isnan(check.value.median) for check in finding.checks):
        return False
    return finding.verdict is Verdict.INCONCLUSIVE and min(still, default=REPLICATES[-1]) < REPLICATES[-1]


def _counted(verdicts: Sequence[str], unfinished: int) -> str:
    order = [*Verdict, *dict.fromkeys(ON_A_TASK.values())]
    counts = Counter(verdicts)
    texts = {word: f"{counts[word]} {word}" for word in order if counts[word]}
    if unfinished:
        texts["open"] += f" ({unfinished} unfinished)"
    return f"{len(verdicts)} claims, {', '.join(texts.values())}"


def _row(result: Results, claim: Claim) -> list[str]:
    """Return the row of a claim: what it says, what was measured, and what came out."""
    finding, stated = result.findings[claim.id], claim.statement
    link = f"[{claim.id}]({result.paper.key}.md#{claim.id.lower()})"
    price = f": {forecast(claim.needs, result.pipelines)}" if finding.verdict is Verdict.NOT_RUN and claim.needs else ""
    return [link, stated.text, measured_line(finding), stated.passes, f"**{finding.verdict}**{price}{_where(finding)}"]


def _where(finding: Finding) -> str:
    """Return in words where a claim passes that passes in a region, or where it fails, if it is open as a whole."""
    shown = {Verdict.REGION: Verdict.PASS, Verdict.INCONCLUSIVE: Verdict.FAIL}.get(finding.verdict)
    under = {name: cell for name, cell in finding.cells.items() if cell is shown}
    return f". {listed(under)}" if under else ""
