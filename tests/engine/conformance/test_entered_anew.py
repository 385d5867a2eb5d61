"""A worker may store its state wherever it asks whether it is done, at the end of a cycle; `train` that is entered
anew with it goes on as if it had never stopped."""

from __future__ import annotations

import pytest
import torch

from tests.support.cases import CASES, described, prepared
from tests.support.entered_anew import LockstepRun

NODES, STEPS = 4, 14
OWN_TIME = ("adpsgd", "asyncdiloco", "decoupled", "downpour", "gossip")  # and easgd unless in lock-step
LOCKSTEP = [case for case in CASES if case[0] not in OWN_TIME and "algo.backups=1" not in case]
LOCKSTEP = [case for case in LOCKSTEP if case[0] != "easgd" or any("variant" in text for text in case)]


@pytest.mark.parametrize("case", LOCKSTEP, ids=described)
def test_a_run_goes_on_from_wherever_its_workers_ask(case: tuple[str, ...]) -> None:
    """To the same bits, from the first and from the last time that they ask after each number of steps."""
    algo = prepared("experiment=quadratic", f"nodes={NODES}", f"algo={case[0]}", *case[1:]).algo
    whole = LockstepRun(algo, NODES, STEPS).run()
    for stored in (whole.first, whole.last):
        asked = [step for step in stored[0] if step > 0]
        assert asked == list(range(algo.cycle, STEPS, algo.cycle))
        for step in asked:
            resumed = LockstepRun(algo, NODES, STEPS, [states[step] for states in stored]).run()
            assert [worker.steps for worker in resumed.workers] == [STEPS] * NODES
            for one, other in zip(resumed.results(), whole.results(), strict=True):
                assert torch.equal(one, other), f"entered anew after {step} steps"
