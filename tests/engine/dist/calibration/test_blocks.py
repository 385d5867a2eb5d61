"""Steps alone and steps with an exchange take turns, so that no step has the number of another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsgd.engines.dist.calibration.cluster_calibration import BLOCKS, WARM_UP, blocks


@given(st.integers(1, 1000))
def test_blocks_have_all_steps_and_room_to_warm_up(repeats: int) -> None:
    parts = blocks(repeats)
    numbers = [step for steps in parts for step in range(steps.start - WARM_UP, steps.stop)]
    assert sum(map(len, parts)) == repeats
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 0
    assert len(parts) == min(BLOCKS, repeats)
