"""Judge measurements by thresholds that were fixed before.

A check compares one number, an estimate over seeds where there are several, with its threshold. One rule holds for
"better by at least m" and for "not worse by more than m": a check passes where the whole interval meets the threshold,
and fails where the whole interval misses it. Anything between is inconclusive, a request for more seeds.

A claim that fails is explained where a second measurement shows the cause.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from dsgd.report.interval import Estimate


class Verdict(StrEnum):
    """What came out for a claim."""

    PASS = "PASS"
    FAIL = "FAIL"
    EXPLAINED = "FAIL, explained"
    REGION = "PASS in a region"
    DEPENDS = "DEPENDS ON THE TASK"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_TESTABLE = "NOT TESTABLE HERE"
    NOT_RUN = "not run"


NEARNESS = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS)  # to what a claim says
REAL_TASKS = {"fashion", "text"}  # on real images or text: a claim fails only where it does on one of these as well
ON_A_TASK = {
    Verdict.PASS: "reproduced",
    Verdict.REGION: "reproduced in a region",
    Verdict.FAIL: "not reproduced",
    Verdict.EXPLAINED: "not reproduced",
    Verdict.INCONCLUSIVE: "open",
    Verdict.NOT_TESTABLE: "not testable",
}


@dataclass(frozen=True)
class Check:
    """One measurement beside its threshold.

    what: is measured, with its unit. value: with its interval over seeds, where low and high differ. threshold: as a
    reader knows it, `>= 1.1`."""

    what: str
    value: Estimate
    threshold: str
    verdict: Verdict


@dataclass(frozen=True)
class Finding:
    """What a claim came to.

    checks: all measurements that it was judged by. reason: why it failed, or what limits what was shown; empty where
    the checks say it all. explanation: the second measurement, of a failure that is explained. cells: of a map, what
    the claim came to under each condition, by its name."""

    verdict: Verdict
    checks: tuple[Check, ...] = ()
    reason: str = ""
    explanation: tuple[Check, ...] = ()
    cells: Mapping[str, Verdict] = field(default_factory=dict)


def exactly(value: float) -> Estimate:
    """Return a number that no seed changes as an estimate."""
    return Estimate(value, value, value, 1)


def compared(sign: str, what: str, value: Estimate | float, threshold: float) -> Check:
    """Check that a number is above or below a threshold. sign: of COMPARISONS."""
    measured = _estimate(value)
    meets = [COMPARISONS[sign](end, threshold) for end in (measured.low, measured.high)]
    return Check(what, measured, f"{sign} {threshold:.6g}", _verdict(all(meets), any(meets)))


COMPARISONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
at_least, at_most, above, below = (partial(compared, sign) for sign in COMPARISONS)


def within(what: str, value: Estimate | float, low: float, high: float) -> Check:
    """Check that a number lies in [low, high]."""
    measured = _estimate(value)
    inside, overlaps = low <= measured.low and measured.high <= high, measured.high >= low and measured.low <= high
    return Check(what, measured, f"{low:.6g} to {high:.6g}", _verdict(inside, overlaps))


def close(what: str, value: float, expected: float, relative: float = 0.0, absolute: float = 0.0) -> Check:
    """Check that a number is what was expected, but for a share of it or an absolute difference."""
    good = abs(value - expected) <= max(relative * abs(expected), absolute)
    tolerance = f"{100 * relative:.3g} %" if relative else f"{absolute:.3g}"
    return holds(what, value, f"{expected:.6g} within {tolerance}", good)


def holds(what: str, value: float, threshold: str, good: bool) -> Check:
    """Check anything else. threshold: in words."""
    return Check(what, exactly(value), threshold, Verdict.PASS if good else Verdict.FAIL)


def nearness_above(check: Check) -> tuple[int, float]:
    """Return how near a check is to passing, of alternatives whose number must be large. A failing one never hides an
    open one."""
    end = check.value.high if check.verdict is Verdict.FAIL else check.value.low
    return NEARNESS.index(check.verdict), end


def judged(
    checks: Sequence[Check], reason: str = "", need: int | None = None, explained_by: Sequence[Check] = ()
) -> Finding:
    """Return the finding of a claim that passes where `need` of its checks do; by default all.

    explained_by: a second measurement: a failure is explained where all of these checks pass, or `need` of them."""
    if not checks:
        raise ValueError("a claim must have at least one check, got none")
    enough = len(checks) if need is None else need
    verdicts = [check.verdict for check in checks]
    passed, open_still = verdicts.count(Verdict.PASS), verdicts.count(Verdict.INCONCLUSIVE)
    if passed >= enough:
        return Finding(Verdict.PASS, tuple(checks), reason)
    explaining = [check.verdict for check in explained_by].count(Verdict.PASS)
    if passed + open_still >= enough:
        verdict = Verdict.INCONCLUSIVE
    elif explained_by and explaining >= (len(explained_by) if need is None else need):
        verdict = Verdict.EXPLAINED
    else:
        verdict = Verdict.FAIL
    return Finding(verdict, tuple(checks), reason, tuple(explained_by))


def over_tasks(findings: Mapping[str, Finding]) -> Finding:
    """Return the finding of a claim on several tasks, by their names.

    It passes where it is reproduced on all of them, and fails where it is reproduced on none that was run, a real one
    among them. Where it is reproduced on some and not on others it depends on the task. It is not testable where one
    task lacks what the claim presupposes. Its checks and reasons say of which task they are."""
    checks = [
        replace(check, what=f"{task}: {check.what}") for task, finding in findings.items() for check in finding.checks
    ]
    parts = [
        f"On {task} {ON_A_TASK.get(finding.verdict, str(finding.verdict))}. {finding.reason}".strip()
        for task, finding in findings.items()
    ]
    maps = [finding.cells for finding in findings.values()]
    if not all(maps):
        verdict = _on_all_tasks({task: finding.verdict for task, finding in findings.items()})
        return Finding(verdict, tuple(checks), "\n\n".join(parts))
    # what passes under a condition on one task, and under another on the other, passes nowhere
    cells = {name: _on_all_tasks({task: finding.cells[name] for task, finding in findings.items()}) for name in maps[0]}
    parts.append(f"Together {listed(cells)}.")
    return Finding(_of_cells(cells), tuple(checks), "\n\n".join(parts), cells=cells)


def _on_all_tasks(verdicts: Mapping[str, Verdict]) -> Verdict:
    """Return the verdict of a claim by those of its tasks."""
    run = {task: verdict for task, verdict in verdicts.items() if verdict is not Verdict.NOT_RUN}
    if Verdict.NOT_TESTABLE in run.values():
        return Verdict.NOT_TESTABLE
    failed = {task for task, verdict in run.items() if verdict in (Verdict.FAIL, Verdict.EXPLAINED)}
    if failed and failed == run.keys() and failed & REAL_TASKS:
        return Verdict.FAIL
    if len(run) < len(verdicts):
        return Verdict.NOT_RUN
    if len({*run.values()}) == 1:
        return Verdict.INCONCLUSIVE if failed else next(iter(run.values()))
    if failed and Verdict.INCONCLUSIVE not in run.values():
        return Verdict.DEPENDS
    return Verdict.INCONCLUSIVE


def over_region(cells: Mapping[str, Finding], reason: str = "") -> Finding:
    """Return the finding of a claim under several conditions, by their names: it passes where it does under all, and in
    a region where it does under some. Its reason says under which. reason: what else it says."""
    checks = [replace(check, what=f"{name}: {check.what}") for name, cell in cells.items() for check in cell.checks]
    verdicts = {name: cell.verdict for name, cell in cells.items()}
    return Finding(_of_cells(verdicts), tuple(checks), f"{listed(verdicts)}. {reason}".strip(), cells=verdicts)


def _of_cells(cells: Mapping[str, Verdict]) -> Verdict:
    """Return the verdict of a map by those of its cells."""
    verdicts = {*cells.values()}
    if Verdict.PASS in verdicts:
        return Verdict.PASS if len(verdicts) == 1 else Verdict.REGION
    undecided = (Verdict.INCONCLUSIVE, Verdict.DEPENDS)
    return next((verdict for verdict in undecided if verdict in verdicts), Verdict.FAIL)


def listed(cells: Mapping[str, Verdict]) -> str:
    """Return what a claim came to under which conditions, in words."""
    names = {verdict: [name for name, cell in cells.items() if cell is verdict] for verdict in Verdict}
    return ". ".join(f"{verdict}: {'; '.join(under)}" for verdict, under in names.items() if under)


def _estimate(value: Estimate | float) -> Estimate:
    return value if isinstance(value, Estimate) else exactly(value)


def _verdict(whole: bool, part: bool) -> Verdict:
    """Return the verdict on an interval of which all or a part meets the threshold."""
    if whole:
        return Verdict.PASS
    return Verdict.INCONCLUSIVE if part else Verdict.FAIL
