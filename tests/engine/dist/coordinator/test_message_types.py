"""A message that is not as declared is refused with a line in words of ours, whatever it holds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsgd.engines.dist.coordinator.messages import Heartbeat, SnapshotMessage, as_declared
from dsgd.engines.dist.frames import BadFrame

HEARTBEAT = {"kind": "heartbeat", "steps": 5, "counters": {"busy_s": 0.5}}
SNAPSHOT = {**HEARTBEAT, "kind": "snapshot", "key": "last", "time_s": 0.5, "extra": {}}
LONE = json.loads(r'"\ud800"')  # half of a pair, which is no text
NEST = json.loads("[" * 500 + "]" * 500)


def test_a_message_with_other_fields_is_refused_in_one_line() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"steps": 10**400}, "no possible steps"),
        ({"steps": NEST}, "no possible steps"),
        ({"counters": {"busy_s": 10**400}}, "no possible counters"),  # beyond all floats
        ({"counters": {"staleness": [0, 1, 10**400]}}, "no possible counters"),
        ({"counters": {"sent": NEST}}, "no possible counters"),
        ({"counters": {"busy_s": 0.5, "steps": 1}}, "no possible counters"),
        ({"counters": {LONE: 0.5}}, "no possible counters"),
        ({LONE: 5}, "a field that it may not have"),
        ({"`$.steps`": 5}, "a field that it may not have"),
        ({"vectors": NEST}, "a field that it may not have"),
    ]
    for changes, line in wrong:
        with pytest.raises(BadFrame, match=f"^a heartbeat message had {line}$"):
            as_declared({**HEARTBEAT, **changes}, Heartbeat)


def test_a_field_that_is_missing_is_named() -> None:
    for field in ("steps", "counters"):
        with pytest.raises(BadFrame, match=f"^a heartbeat message had no possible {field}$"):
            as_declared({name: value for name, value in HEARTBEAT.items() if name != field}, Heartbeat)


def test_a_checkpoint_holds_what_it_names_and_no_more() -> None:
    assert as_declared(SNAPSHOT, SnapshotMessage).same == ()
    for extra in ({"steps": 1}, {"vectors": {}}, {"more": 1}, {"rng": {"bit_generator": "PCG64"}}):
        with pytest.raises(BadFrame, match=r"^a snapshot message had no possible extra$"):
            as_declared({**SNAPSHOT, "extra": extra}, SnapshotMessage)
