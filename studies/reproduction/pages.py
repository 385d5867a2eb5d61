"""Write the pages of the papers: what each claim came to, with its figures."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsgd.record.safe_files import write_atomically
from dsgd.record.safe_text import for_markdown
from dsgd.report.interval import Estimate
from dsgd.report.style import add_setting, drawing, save
from dsgd.report.table_layout import part_text
from studies.evidence.forecast import forecast
from studies.evidence.pipeline import Missing, Pipelines
from studies.evidence.trial import CLOCKS, TRIALS, Trial
from studies.reproduction import archive
from studies.reproduction.logged import Logged
from studies.reproduction.paper import Chart, Claim, Paper, Study
from studies.reproduction.verdict import Check, Finding, Verdict, over_tasks

MOST_IN_CELL = 3  # checks of a claim in the table of all; its page has the others
ARCHIVE = "Runs"
QUICK = "**Quick: one replicate of each pipeline, so no interval is known, and nothing about learning is decided.**"
EXPLANATIONS = {
    Verdict.EXPLAINED: "A second comparison shows the cause:",
    Verdict.FAIL: "Unexplained: a second measurement does not show the cause.",
    Verdict.INCONCLUSIVE: "A second measurement:",
}


@dataclass(frozen=True)
class Results:
    """What there is of a paper. logged: of each study that has runs. on_tasks: what a claim about learning came to on
    each of its tasks, by the claims' ids. findings: what each claim came to, by the same."""

    paper: Paper
    logged: dict[str, Logged]
    rows: dict[str, list[archive.ArchiveRow]]
    on_tasks: dict[str, dict[str, Finding]]
    findings: dict[str, Finding]
    pipelines: Pipelines

    @staticmethod
    def read(paper: Paper, results: Path, pipelines: Pipelines) -> Results:
        """Read the archive of a paper, and judge its claims. Raises ValueError for a file that is no archive."""
        path = archive.path_of(paper.key, results)
        rows = archive.rows_made_by(paper.studies, path)
        with archive.reading(path):
            logged = {name: archive.logged_of(of_study) for name, of_study in rows.items()}
            on_tasks = {claim.id: findings_on_tasks(claim, pipelines) for claim in paper.claims}
            findings = {claim.id: finding_of(claim, logged, on_tasks[claim.id]) for claim in paper.claims}
        return Results(paper, logged, rows, on_tasks, findings, pipelines)


def write_paper(paper_results: Results, results: Path) -> None:
    """Write the page and the figures of a paper into an existing folder."""
    paper = paper_results.paper
    known = [chart for chart in paper.charts if {*chart.studies} <= paper_results.logged.keys()]
    charts = [chart for chart in known if _draw(paper_results, chart, results)]
    links = {claim.id: f"[{claim.id}](#{claim.id.lower()}): {claim.statement.text}" for claim in paper.claims}
    summary = [[link, f"**{paper_results.findings[id].verdict}**"] for id, link in links.items()]
    parts = [
        f"# {paper.title}",
        paper.reference,
        paper.summary,
        QUICK if paper_results.pipelines.quick else "",
        table(["claim", "outcome"], summary),
        *(f"![{chart.caption}]({_file(paper, chart)})\n\n*{chart.caption}*" for chart in charts),
        "## Claims",
        *(part for claim in paper.claims for part in _claim(paper_results, claim)),
        "## Setting",
        table(["what", "value", "status"], [[each.what, each.value, each.status] for each in paper.assumptions]),
        "## Runs",
        *_runs(paper_results),
    ]
    write_page(page_of(paper, results), parts)


def _draw(paper_results: Results, chart: Chart, results: Path) -> bool:
    """Write a figure. Returns whether there is something in it."""
    with drawing("double"):
        figure = chart.draw(paper_results.logged if chart.studies else paper_results.pipelines)
        if figure is None:
            return False
        if chart.studies:
            figure = add_setting(figure, [run for name in chart.studies for run in paper_results.logged[name].runs])
        save(figure, results / _file(paper_results.paper, chart))
    return True


def page_of(paper: Paper, results: Path) -> Path:
    """Return the page of a paper."""
    return results / f"{paper.key}.md"


def verdict_lines(paper_results: Results, claim: Claim, results: Path) -> str:
    """Return what a claim came to, and the page that says more."""
    finding = paper_results.findings[claim.id]
    measured = measured_line(finding) or finding.reason
    stated = claim.statement
    verdict = f"{finding.verdict} (threshold: {stated.passes}): {measured}"
    return f"{claim.id}: {stated.text}\n{verdict}\npage: {page_of(paper_results.paper, results)}"


def measured_line(finding: Finding) -> str:
    """Return what was measured, in a cell of the table of all claims: first what decided against it."""
    passes = finding.verdict is Verdict.PASS
    ordered = sorted(finding.checks, key=lambda check: check.verdict is Verdict.PASS and not passes)
    texts = [f"{check.what}: {shown(check.value)}" for check in ordered[:MOST_IN_CELL]]
    left = len(ordered) - len(texts)
    return "; ".join(texts) + (f"; and {left} more" if left else "")


def shown(value: Estimate) -> str:
    """Return a number, with its interval in brackets where seeds differ: `1.7 [1.5, 2.0]`; `unknown` for any number."""
    if math.isnan(value.median) and math.isfinite(value.low) and math.isfinite(value.high):
        return f"between {_number(value.low)} and {_number(value.high)}"
    middle, low, high = (part_text(value, name, _number) for name in ("median", "low", "high"))
    any_number = math.isinf(value.high) and (value.low == 0 or math.isinf(value.low))
    return middle if any_number or value.low == value.high else f"{middle} [{low}, {high}]"


def finding_of(claim: Claim, logged: dict[str, Logged], on_tasks: dict[str, Finding]) -> Finding:
    """Return what a claim came to. on_tasks: on each of its tasks; none of a claim that is judged by studies."""
    if on_tasks:
        return over_tasks(on_tasks)
    if missing := [name for name in claim.studies if name not in logged]:
        return Finding(Verdict.NOT_RUN, reason=f"Runs are missing: {', '.join(missing)}.")
    return claim.judge(logged)


def findings_on_tasks(claim: Claim, pipelines: Pipelines) -> dict[str, Finding]:
    """Return what a claim about learning came to on each of its tasks; none of another claim."""

    def finding(task: str) -> Finding:
        try:
            return claim.judge(pipelines, task)
        except Missing:
            return Finding(Verdict.NOT_RUN, reason=f"Runs are missing: {forecast(claim.needs, pipelines)}.")

    return {task: finding(task) for task in claim.tasks}


def _claim(paper_results: Results, claim: Claim) -> list[str]:
    """Return the parts of the section of a claim: what it says, what was measured, why."""
    finding = paper_results.findings[claim.id]
    used = [study for study in paper_results.paper.studies if study.name in claim.studies]
    commands = [*dict.fromkeys(study.command for study in used)]  # one program makes several
    if claim.needs:
        commands = [f"dsgd-reproduce --claim {claim.id}"]
    return [
        f"### {claim.id}",
        f"**{finding.verdict}.** {claim.statement.text} ({claim.statement.source})",
        f"Passes with: {claim.statement.passes}",
        _conditions(claim),
        _checks(paper_results, claim, finding.checks),
        finding.reason,
        *([_introduced(finding), _checks(paper_results, claim, finding.explanation)] if finding.explanation else []),
        "Unexplained." if finding.verdict is Verdict.FAIL and not (finding.explanation or claim.tasks) else "",
        "```\n" + "\n".join(commands) + "\n```" if commands else "",
    ]


def _conditions(claim: Claim) -> str:
    """Return what was published, under which conditions, what is tested, and whose the threshold is."""
    known = claim.statement.conditions
    if known is None:
        return ""
    owner = known.threshold_of.replace("ours: ", "ours, ")
    lines = {"Published": known.published, "There": known.there, "Here": known.here, "Threshold": owner}
    return "\n".join(f"- {name}: {text}" for name, text in lines.items())


def _short(commit: str | None) -> str:
    """Return the first digits of a commit, with the plus that stands for files that had changed since."""
    return "no commit" if commit is None else commit[:12] + "+" * commit.endswith("+")


def _introduced(finding: Finding) -> str:
    """Return the sentence before the second measurement."""
    missed = [check.verdict for check in finding.explanation if check.verdict is not Verdict.PASS]
    if finding.verdict is Verdict.FAIL and set(missed) == {Verdict.INCONCLUSIVE}:
        return "Unexplained as yet: a second measurement is inconclusive."
    return EXPLANATIONS[finding.verdict]


def _checks(paper_results: Results, claim: Claim, checks: Sequence[Check]) -> str:
    """Return the table of checks; of a claim that cannot be tested here, without their thresholds."""
    lines = [[check.what, shown(check.value), check.threshold, str(check.verdict)] for check in checks]
    head = ["measured", "value", "threshold", "outcome"]
    if claim.tasks:
        head.append("replicates")
        lines = [[*line, f"{check.value.count}"] for line, check in zip(lines, checks, strict=True)]
    if paper_results.findings[claim.id].verdict is Verdict.NOT_TESTABLE:
        head, lines = ["measured, as information", "value"], [line[:2] for line in lines]
    return table(head, lines) if lines else ""


def _runs(paper_results: Results) -> list[str]:
    """Return the tables of the studies and of the pipelines, with what they were made."""
    paper = paper_results.paper
    lines = [_study(paper_results, study) for study in paper.studies if study.name in paper_results.rows]
    parts = [table(["study", "runs", "made with"], lines)] if lines else []
    if lines:
        plus = " A plus behind a commit: files had changed since." if any("+" in line[-1] for line in lines) else ""
        parts.append(
            f"All of them are in `{paper.key}{archive.SUFFIX}`, for `pandas.read_json(..., lines=True)`.{plus}"
        )
    if any(claim.needs for claim in paper.claims):
        parts.append(f"Runs of claims about learning are in [one archive of all papers](README.md#{ARCHIVE.lower()}).")
    return parts or ["None yet."]


def _study(paper_results: Results, study: Study) -> list[str]:
    rows = paper_results.rows[study.name]
    versions = (map(row["made_with"].get, ("dsgd", "commit", "torch")) for row in rows)
    names = sorted({f"dsgd {dsgd} at {_short(commit)}, torch {torch}" for dsgd, commit, torch in versions})
    return [study.name, str(len(rows)), for_markdown("; ".join(names))]


def archive_parts(pipelines: Pipelines) -> list[str]:
    """Return the section on the archive of pipelines, which all papers share; none without runs."""
    if not pipelines.trials:
        return []
    groups: dict[tuple[str, int], list[Trial]] = defaultdict(list)
    for trial in sorted(pipelines.trials):
        groups[trial.task, trial.nodes].append(trial)
    lines = [
        [task, f"{nodes}", f"{len(of_group)}", f"{len({trial.replicate for trial in of_group})}"]
        for (task, nodes), of_group in sorted(groups.items())
    ]
    commits = ", ".join(sorted({outcome.commit for outcome in pipelines.trials.values()}))
    made = f"Made with {commits}." if commits else ""
    file = f"Every run is a line of `{TRIALS}`, and the seconds of every kind of step are in `{CLOCKS}`."
    return [f"## {ARCHIVE}", table(["task", "nodes", "runs", "replicates begun"], lines), f"{file} {made}".strip()]


def _file(paper: Paper, chart: Chart) -> str:
    return f"{paper.key}_{chart.name}.png"


def write_page(path: Path, parts: Iterable[str]) -> None:
    """Write a page of Markdown of its parts, without those that are empty."""
    write_atomically(path, ("\n\n".join(part for part in parts if part) + "\n").encode())


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    rows = [list(head), ["---"] * len(head), *lines]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows
    )


def _number(value: float) -> str:
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "never" if value > 0 else "diverged"
    return f"{value:.4g}"
