"""Compare a class with dsgd's text of its method and with exact reductions, and name the suspects if it differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

from dsgd.certificate.counterpart import counterpart
from dsgd.certificate.interfaces import ForeignClass
from dsgd.certificate.processes import TrainingFailed, TrainingPath, trained
from dsgd.certificate.reductions import REDUCTIONS, Reduction
from dsgd.certificate.small_problems import PROBLEMS, SmallProblem
from dsgd.certificate.suspects import Suspect, suspects

TOLERANCE = 1e-12  # largest difference, relative to the largest number of a tensor if that is above 1


@dataclass(frozen=True)
class CertificateLine:
    """The outcome of one comparison. largest: largest difference. difference: first difference above the tolerance, or
    the exception of the class, as a part of a sentence; "" if they are equal."""

    title: str
    largest: float
    difference: str = ""

    def __str__(self) -> str:
        return f"{self.title}: {self.difference or f'equal to {self.largest:.1e}'}"


@dataclass(frozen=True)
class Certificate:
    """The outcome of all comparisons. named: suspects that explain every difference from dsgd's method; None: none was
    tried, as there was no such difference."""

    lines: Sequence[CertificateLine]
    named: Sequence[str] | None

    @property
    def is_certified(self) -> bool:
        return not any(line.difference for line in self.lines)

    @property
    def verdict(self) -> str:
        if self.is_certified:
            return f"certified: {len(self.lines)} comparisons, each equal to {TOLERANCE:g}"
        if self.named is None:
            return "differs"
        return f"differs: {'; or '.join(self.named) or 'no suspect alone explains it'}"


def certify(foreign: ForeignClass, say: Callable[[str], None]) -> Certificate:
    """Compare a class on all problems and reductions. say: called with each line as soon as it is known.

    Raises ValueError for a class that cannot be compared with anything."""
    lines = list[CertificateLine]()
    pairs = dict[SmallProblem, tuple[TrainingPath, TrainingPath]]()  # values of the class and of dsgd's method

    def add(line: CertificateLine) -> None:
        lines.append(line)
        say(str(line))

    for problem in PROBLEMS if foreign.algo else ():
        builds = [counterpart(foreign.algo or "", foreign.options), foreign.build(foreign.options)]
        try:
            ours, theirs = trained(problem, builds)
            pairs[problem] = theirs, ours
            add(compared(problem.title, theirs, ours))
        except TrainingFailed as error:
            if error.number == 0:  # such as a method that needs SGD
                say(f"{problem.title}: left out, {error}")
            else:
                add(CertificateLine(problem.title, nan, f"fails: {error}"))
    for reduction in REDUCTIONS:
        options = reduction.options(foreign.options)
        if options is not None and (line := _reduced(foreign, reduction, options)) is not None:
            add(line)
    if not lines:
        raise ValueError(f"{foreign.path} has nothing to be compared with: dsgd cannot train a problem by its algo")
    return Certificate(lines, explanations(foreign, pairs))


def _reduced(foreign: ForeignClass, reduction: Reduction, options: Mapping[str, Any]) -> CertificateLine | None:
    """Compare a class with a plain loop; None where dsgd's method does not equal the plain loop."""
    known = [reduction.plain, *([counterpart(foreign.algo, options)] if foreign.algo else [])]
    try:
        plain, *ours, theirs = trained(reduction.problem, [*known, foreign.build(options)])
        line = compared(reduction.title, theirs, plain)
    except TrainingFailed as error:
        if error.number is not None and error.number < len(known):  # dsgd refuses these options
            return None
        plain, *ours = trained(reduction.problem, known)
        line = CertificateLine(reduction.title, nan, f"fails: {error}")
    return None if ours and compared("", ours[0], plain).difference else line


def explanations(
    foreign: ForeignClass, pairs: Mapping[SmallProblem, tuple[TrainingPath, TrainingPath]]
) -> list[str] | None:
    """Return the names of the suspects with the same values as the class, on every problem. None: nothing differs
    from dsgd's method."""
    differing = [problem for problem, (theirs, ours) in pairs.items() if compared("", theirs, ours).difference]
    if foreign.algo is None or not differing:
        return None
    left = list(suspects(foreign.algo, foreign.options))
    for problem in sorted(pairs, key=lambda problem: problem not in differing):
        theirs, _ = pairs[problem]
        tried = _values_of(left, problem)
        left = [each for each, values in zip(left, tried, strict=True) if not compared("", values, theirs).difference]
    return [suspect.name for suspect in left]


def _values_of(left: list[Suspect], problem: SmallProblem) -> list[TrainingPath]:
    """Train a problem with each suspect, and drop from the list the suspects that this method cannot have."""
    while left:
        try:
            return trained(problem, [suspect.build for suspect in left])
        except TrainingFailed as error:
            if error.number is None:
                raise
            del left[error.number]
    return []


def compared(title: str, theirs: TrainingPath, ours: TrainingPath) -> CertificateLine:
    """Compare the values of two loops, in the order of steps, then tensors, then ranks."""
    shapes, others = ({(name, tuple(values.shape)) for name, values in path.items()} for path in (theirs, ours))
    if changed := ", ".join(sorted({name for name, _ in shapes ^ others})):
        return CertificateLine(title, nan, f"differs in the names or shapes of its parameters and buffers: {changed}")
    gaps = {name: _gap(theirs[name].double(), known.double()) for name, known in ours.items()}
    largest = max((float(gap.max()) for gap in gaps.values()), default=0.0)
    if largest <= TOLERANCE:
        return CertificateLine(title, largest)
    step = min(
        int((gap > TOLERANCE).flatten(1).any(1).int().argmax()) for gap in gaps.values() if gap.max() > TOLERANCE
    )
    name = next(name for name, gap in gaps.items() if gap[step].max() > TOLERANCE)
    above = gaps[name][step] > TOLERANCE  # [nodes, ...]
    rank, *index = above.nonzero()[0].tolist()
    ranks = above.reshape(len(above), -1).any(1).nonzero().flatten().tolist()
    both = [float(values[name][step][rank][tuple(index)]) for values in (theirs, ours)]
    numbers = next(shown for digits in (7, 17) if len(set(shown := [f"{value:.{digits}g}" for value in both])) == 2)
    when = f"after step {step}" if step else "before the first step"
    others = f", as on rank{'s'[: len(ranks) - 2]} {', '.join(map(str, ranks[1:]))}" if len(ranks) > 1 else ""
    what = f"{name}{index or ''} of rank {rank} is {numbers[0]}, not {numbers[1]}{others}"
    return CertificateLine(title, largest, f"differs {when}: {what}")


def _gap(theirs: Tensor, ours: Tensor) -> Tensor:
    """Return differences, relative to the largest number if that is above 1; infinite where one has no value."""
    largest = torch.cat((ours.new_ones(1), ours[ours.isfinite()].abs().flatten())).max()
    gap = ((theirs - ours).abs() / largest).nan_to_num(nan=inf)
    return torch.where((theirs == ours) | (theirs.isnan() & ours.isnan()), 0.0, gap)
