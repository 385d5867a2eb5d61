"""Say in words what J1 owes to what its cells do not vary: the jitter of training, and the network that learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain

from studies.evidence.contrast import Need, Pipelines, seconds
from studies.evidence.paired_t import ratio
from studies.evidence.pipeline import Candidate, Missing, all_of, deepest, outcome_of
from studies.evidence.tasks import IMAGES, TARGETS
from studies.papers.jin2016.contenders import ALL_REDUCE, ON_MANY, cell_of
from studies.reproduction.pages import shown

JITTERED = 16  # nodes
FULL = "cluster.jitter=1"  # of training, where all others have 10 %
SPOT, SPOT_NODES = "resnet8", 8
SPOT_RIVALS = ("easgd tau=10", "gossip mode=push tau=1")
SPOT_FIRST = {ALL_REDUCE: 640, **dict.fromkeys(SPOT_RIVALS, 1280)}  # steps that are tried first


ReplicatePair = tuple[float, float]
PairMeasure = Callable[[Pipelines, int], ReplicatePair]  # of a replicate; raises Missing


def jittered(pipelines: Pipelines, task: str) -> str:
    """Return in words how the loss changes where gradient times vary more in training; empty without the runs."""
    texts = _texts({name: _losses(task, name) for name in chain(*ON_MANY.values())}, pipelines)
    return texts and (
        f" All are trained at a jitter of 10 %. Where it is 100 % in training as well, with {JITTERED} nodes and the "
        f"same rate and steps, the test loss is so many times as high: {texts}."
    )


def spot_check(pipelines: Pipelines, task: str) -> str:
    """Return in words the race of a ResNet on the real images; empty for generated ones, and without the runs."""
    texts = _texts({name: _seconds(name) for name in SPOT_RIVALS}, pipelines) if task == "fashion" else ""
    return texts and (
        f" Spot check by a ResNet-8 of 8 channels on the same images, to a test loss of {TARGETS[SPOT]:g} with "
        f"{SPOT_NODES} nodes, a jitter of 10 % and overlap: time of all-reduce over that of {texts}."
    )


def _losses(task: str, name: str) -> PairMeasure:
    """Return the losses of a contender that is trained at full jitter, and as usual, after the most steps of T*."""

    def pair(pipelines: Pipelines, replicate: int) -> ReplicatePair:
        usual = deepest(cell_of(task, JITTERED, name), replicate, TARGETS[task], pipelines.trials)
        full = replace(usual, contender=f"{name} {FULL}")
        return outcome_of(full, pipelines.trials).loss, outcome_of(usual, pipelines.trials).loss

    return pair


def _seconds(rival: str) -> PairMeasure:
    """Return the seconds of all-reduce and of a rival to the target of the spot check."""
    measures = [
        seconds([Candidate(SPOT, name, SPOT_NODES, SPOT_FIRST[name])], TARGETS[SPOT], jitter=0.1)
        for name in (ALL_REDUCE, rival)
    ]

    def pair(pipelines: Pipelines, replicate: int) -> ReplicatePair:
        exact, other = all_of(partial(measure, pipelines, replicate) for measure in measures)
        return exact.value, other.value

    return pair


def _replicates(pairs: PairMeasure, pipelines: Pipelines) -> list[ReplicatePair]:
    """Return the pairs of the first replicates. Raises Missing."""
    return all_of(partial(pairs, pipelines, replicate) for replicate in range(pipelines.counts[0]))


def _texts(contenders: Mapping[str, PairMeasure], pipelines: Pipelines) -> str:
    """Return the ratio of each contender with its name; empty where runs are missing."""
    texts = []
    for name, pairs in contenders.items():
        try:
            values, others = zip(*_replicates(pairs, pipelines), strict=True)
        except Missing:
            return ""
        texts.append(f"{name} {shown(ratio(values, others))}")
    return "; ".join(texts)


def _need(pairs: PairMeasure) -> Need:
    def need(pipelines: Pipelines, _: int) -> None:
        _replicates(pairs, pipelines)

    return need


NEEDS = tuple(
    _need(pairs)
    for pairs in (
        *(_losses(task, name) for task in IMAGES for name in chain(*ON_MANY.values())),
        *(_seconds(name) for name in SPOT_RIVALS),
    )
)
