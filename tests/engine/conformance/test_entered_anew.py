"""A worker may store its state wherever it asks whether it is done, at the end of a cycle; `train` that is entered
anew with it goes on as if it had never stopped."""

from __future__ import annotations

import pytest
import torch
from omegaconf import OmegaConf

from dsgd.runner.named_algorithm import named_algorithm
from dsgd.runner.values import ConfigError
from tests.support.cases import CASES, described, prepared
from tests.support.entered_anew import LockstepRun

NODES, STEPS = 4, 18


def is_lockstep(case: tuple[str, ...]) -> bool:
    """Check that a case can run over process groups, without composing it: each process collects all tests."""
    options = OmegaConf.from_dotlist([*case[1:]])
    try:
        named_algorithm(case[0], options.get("algo", {}), options.get("topology"), NODES, seed=0)
    except ConfigError:
        return False
    return True


LOCKSTEP = [case for case in CASES if is_lockstep(case)]


@pytest.mark.parametrize("case", LOCKSTEP, ids=described)
def test_a_run_goes_on_from_wherever_its_workers_ask(case: tuple[str, ...]) -> None:
    """To the same bits, from the first and from the last time that they ask after each number of steps."""
    algo = prepared("experiment=quadratic", f"nodes={NODES}", f"algo={case[0]}", *case[1:]).algo
    whole = LockstepRun(algo, NODES, STEPS).run()
    for stored in (whole.first, whole.last):
        steps = [step for step in stored[0] if step > 0]
        assert steps == list(range(algo.cycle, STEPS, algo.cycle))
        for step in steps:
            resumed = LockstepRun(algo, NODES, STEPS, [states[step] for states in stored]).run()
            assert [worker.steps for worker in resumed.workers] == [STEPS] * NODES
            for one, other in zip(resumed.results(), whole.results(), strict=True):
                assert torch.equal(one, other), f"entered anew after {step} steps"
