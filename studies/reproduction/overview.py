"""Write the overview of all papers: exact properties, claims that are judged, and what the small scale only shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from dsgd.record.written import write_atomically
from dsgd.report.style import drawing, save
from studies.reproduction.criterion import ClaimKind
from studies.reproduction.pages import Results, measured_line, table
from studies.reproduction.paper import SMALL, Claim
from studies.reproduction.profile import Scores, profile_figure, profiles, settings_of
from studies.reproduction.verdict import Verdict

OVERVIEW = "README.md"

INTRODUCTION = (
    """# The papers, reproduced

Every claim has a threshold that was fixed before the measurements; docs/explanation/papers.md lists what changed since.
Anybody can make the runs again: `make reproduce` those of the small scale, `dsgd-reproduce all --scale real` those of
the real one, which alone decide claims about learning
([docs/explanation/papers.md](../../docs/explanation/papers.md))."""
    ""
)

EXACT = """## Exact properties

Closed forms and invariants. They hold by construction, and tests hold them in many more cases: that they pass says that
the program does what it says, not that a paper is right."""

CLAIMS = """## Claims

What can be wrong: claims about time, and those about learning that have a study at the real scale. Each page has the
paper's sentence and conditions, ours, and whose the threshold is.

PASS: the threshold is met; of a claim about learning on each task. PASS in a region: under some conditions; the page
says which. FAIL: it is missed; of a claim about learning on all tasks that were run, a real one among them; explained:
a second measurement shows why. DEPENDS ON THE TASK: met on one, missed on another. INCONCLUSIVE: the measurement does
not decide it. NOT TESTABLE HERE: a condition of the claim is absent."""
NO_STUDY = "Claims about learning that have no study at the real scale yet: "

NOT_JUDGED = """## Claims about learning, at the small scale

Not judged: these runs are some hundred steps of a network with one hidden layer on generated images of 8 x 8 pixels,
with one tuning seed and 1,000 to 4,000 test images. They show in minutes that everything runs, and what it measures.
Their thresholds are met, missed or open here; the protocol asks for more steps, a second task and a null test."""

PROFILE = """## Performance profile

In which share of the settings an algorithm reaches the target within a factor of the best one's time. A setting is what
the contenders of a study share; each was tuned in each."""
AT_SMALL_SCALE = "At the small scale, so that it shows the figure, and no verdict."
PROFILE_FILE = "profile.png"

PaperClaim = tuple[Results, Claim]


def write_overview(all_results: Sequence[Results], results: Path) -> str:
    """Write the tables of all claims into an existing folder. Returns the score, in one line."""
    entries = [(result, claim) for result in all_results for claim in result.paper.claims]
    exact = [(result, claim) for result, claim in entries if _is_exact(claim)]
    judged = [(result, claim) for result, claim in entries if result.is_judged(claim) and not _is_exact(claim)]
    shown = [(result, claim) for result, claim in entries if not result.is_judged(claim)]
    score = score_line(entries)
    parts = [INTRODUCTION, f"**{score}**"]
    for head, part in ((CLAIMS, judged), (NOT_JUDGED, shown), (EXACT, exact)):
        if part:
            parts += [head, table(["", "claim", "measured", "threshold", "outcome"], [_row(*entry) for entry in part])]
        if head == CLAIMS and (missing := _without_study(entries)):
            parts.append(f"{NO_STUDY}{', '.join(missing)}.")
    parts += _profile(all_results, results)
    write_atomically(results / OVERVIEW, ("\n\n".join(parts) + "\n").encode())
    return score


def score_line(entries: Sequence[PaperClaim]) -> str:
    """Return how many claims came to what: `29 claims: 2 PASS; 1 FAIL; 26 without a study. 16 exact
    properties: 16 PASS`."""
    parts = []
    for exact, name in ((False, "claims"), (True, "exact properties")):
        of_kind = [entry for entry in entries if _is_exact(entry[1]) == exact]
        counts = Counter(result.findings[claim.id].verdict for result, claim in of_kind if result.is_judged(claim))
        texts = [f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]]
        if left := _without_study(of_kind):
            texts.append(f"{len(left)} without a study")
        if of_kind:
            parts.append(f"{len({claim.id for _, claim in of_kind})} {name}: {'; '.join(texts)}")
    return ". ".join(parts)


def _without_study(entries: Sequence[PaperClaim]) -> list[str]:
    """Return the claims that are judged at no scale, by their ids."""
    judged = {claim.id for result, claim in entries if result.is_judged(claim)}
    return [claim.id for _, claim in entries if claim.id not in judged]


def _profile(all_results: Sequence[Results], results: Path) -> list[str]:
    """Draw the performance profile over the settings of all papers. Returns its section, empty without enough."""
    real = [result for result in all_results if result.scale != SMALL]
    known, notes = profiles(_settings(real)), list[str]()
    if not known:
        known, notes = profiles(_settings(all_results)), [AT_SMALL_SCALE]
    if not known:
        return []
    with drawing("single", log=("x",)):
        save(profile_figure(known), results / PROFILE_FILE)
    return [PROFILE, *notes, f"![Share of the settings against the factor]({PROFILE_FILE})"]


def _settings(all_results: Sequence[Results]) -> Iterator[Scores]:
    """Yield the scores in every setting of these papers."""
    for result in all_results:
        for logged in result.logged.values():
            yield from settings_of(logged, result.rule)


def _is_exact(claim: Claim) -> bool:
    return claim.statement.kind is ClaimKind.EXACT


def _row(result: Results, claim: Claim) -> list[str]:
    """Return the row of a claim: what it says, what was measured, and what came out."""
    finding, stated = result.findings[claim.id], claim.statement
    link = f"[{claim.id}]({result.paper.key}.md#{claim.id.lower()})"
    return [link, stated.text, measured_line(finding), stated.passes, f"**{result.outcome(claim, finding.verdict)}**"]
