"""List what the last release had and this one has not: withdrawn keys, and classes that have moved.

An entry stays for one release."""

from __future__ import annotations

from typing import Any

# key: its former default, which a stored configuration may have, and what to use instead
WITHDRAWN: dict[str, tuple[Any, str]] = {
    "eval.sharded": (None, "the coordinator evaluates; eval.every_epochs and eval.every_steps set how often"),
}

# the former import path of a class that stored configurations and files of users name
MOVED = {
    "dsgd.optimizer.SGD": "dsgd.optim.optimizer.SGD",
    "dsgd.optimizer.AdamW": "dsgd.optim.optimizer.AdamW",
    "dsgd.muon.Muon": "dsgd.optim.muon.Muon",
    "dsgd.schedule.Schedule": "dsgd.optim.schedule.Schedule",
}


def explained(key: str) -> str | None:
    """Return the error text for a withdrawn key; None for any other key."""
    return f"{key} is withdrawn: {WITHDRAWN[key][1]}" if key in WITHDRAWN else None
