"""Compare contenders by what their pipelines measured: checks on ratios, one pair of numbers for each replicate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dsgd.report.interval import CONFIDENCE, Estimate
from studies.evidence.paired_t import REPLICATES, ratio, replicates_wanted
from studies.evidence.pipeline import Candidate, Missing, all_of, loss_after, steps_to, tuned_steps_to
from studies.evidence.trial import CLOCKS, TRIALS, Clock, Trial, TrialOutcome, read_clocks, read_trials
from studies.reproduction.criterion import Statement
from studies.reproduction.verdict import Check, Verdict

ReplicatePair = tuple[float, float]


@dataclass(frozen=True)
class Pipelines:
    """The archive: what trials came to, and the seconds of steps."""

    trials: dict[Trial, TrialOutcome]
    clocks: dict[Clock, float]
    _known: dict[tuple[Candidate, int, float], ReplicatePair] = field(default_factory=dict)  # T*, measured and tuned

    @staticmethod
    def read(results: Path) -> Pipelines:
        """Read the archive of a folder. Raises ValueError for a file that is none."""
        return Pipelines(read_trials(results / TRIALS), read_clocks(results / CLOCKS))

    def steps(self, cell: Candidate, replicate: int, target: float) -> float:
        """Return T*. Raises Missing."""
        return self._steps(cell, replicate, target)[0]

    def loss(self, cell: Candidate, replicate: int, steps: int) -> float:
        """Return the measured loss after a number of steps. Raises Missing."""
        return loss_after(cell, replicate, steps, self.trials)

    def time_s(
        self, variants: Sequence[Candidate], replicate: int, target: float, overlap: bool, jitter: float
    ) -> float:
        """Return the seconds to the target of an algorithm, with the variant that is the soonest one in tuning.

        overlap: of all-reduce. Raises Missing, with what all variants miss."""

        def tuned_and_measured(cell: Candidate) -> ReplicatePair:
            clock = Clock(cell.contender, cell.nodes, overlap and cell.contender == "sync", jitter, replicate)
            step_s, (measured, tuned) = all_of(
                [partial(self.step_s, clock), partial(self._steps, cell, replicate, target)]
            )
            return tuned * step_s, measured * step_s

        _, measured_s = min(all_of(partial(tuned_and_measured, cell) for cell in variants), key=lambda pair: pair[0])
        return measured_s

    def step_s(self, clock: Clock) -> float:
        """Return the seconds of a step. Raises Missing."""
        if clock not in self.clocks:
            raise Missing([clock])
        return self.clocks[clock]

    def _steps(self, cell: Candidate, replicate: int, target: float) -> ReplicatePair:
        key = (cell, replicate, target)
        if key not in self._known:
            measured = steps_to(cell, replicate, target, self.trials)
            self._known[key] = (measured, tuned_steps_to(cell, replicate, target, self.trials))
        return self._known[key]


@dataclass(frozen=True)
class RatioCheck:
    """One measurement of a claim, to be held against a criterion.

    what: is measured. measure: the two numbers of a replicate, of which the ratio counts; raises Missing."""

    statement: Statement
    criterion: str
    what: str
    measure: Callable[[Pipelines, int], ReplicatePair]

    def need(self, pipelines: Pipelines) -> None:
        """Raise Missing, with what the replicates miss that the measurement wants; nothing where all are there."""
        pairs, wanted = list[ReplicatePair](), REPLICATES[0]
        while len(pairs) < wanted:
            pairs += all_of(partial(self.measure, pipelines, replicate) for replicate in range(len(pairs), wanted))
            wanted = replicates_wanted(*_columns(pairs), self.statement.threshold(self.criterion))

    def pairs(self, pipelines: Pipelines) -> list[ReplicatePair]:
        """Return the numbers of as many replicates as a study may end with. Raises Missing if there are too few."""
        pairs: list[ReplicatePair] = []
        for replicate in range(REPLICATES[-1]):
            try:
                pairs.append(self.measure(pipelines, replicate))
            except Missing:
                if replicate < REPLICATES[0]:
                    raise
                break
        return pairs[: max(count for count in REPLICATES if count <= len(pairs))]

    def ratio(self, pipelines: Pipelines, confidence: float | None = None) -> Estimate:
        """Return the ratio with its interval. Raises Missing."""
        return ratio(*_columns(self.pairs(pipelines)), confidence)

    def check(self, pipelines: Pipelines, checks: int) -> Check:
        """Hold the ratio against the criterion. checks: of which each could make the claim fail: it fails
        where its interval at 1 - 0.05 / checks misses the threshold. All of them must pass, so that each may at its own
        95 %. Raises Missing."""
        check = self.statement.check(self.criterion, self.what, self.ratio(pipelines))
        if check.verdict is not Verdict.FAIL or checks == 1:
            return check
        wider = self.ratio(pipelines, max(1 - (1 - CONFIDENCE) / checks, CONFIDENCE))
        sure = self.statement.check(self.criterion, self.what, wider).verdict is Verdict.FAIL
        return check if sure else Check(check.what, check.value, check.threshold, Verdict.INCONCLUSIVE)


def _columns(pairs: Sequence[ReplicatePair]) -> tuple[list[float], list[float]]:
    return [value for value, _ in pairs], [other for _, other in pairs]
