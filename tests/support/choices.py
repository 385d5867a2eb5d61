"""Read a choice of a configuration group as Hydra composes it, with what its defaults list adds."""

from __future__ import annotations

from functools import cache
from typing import Any

from omegaconf import OmegaConf

from dsgd.cli.compose import GROUPS
from tests.support.simulate import tree

ALONE = [group for group in GROUPS if group != "experiment"]  # which changes no other group


@cache
def _composed() -> dict[tuple[str, str], dict[str, Any]]:
    """Return all choices: one of every group is composed at a time, as composing takes 0.1 s."""
    names = {group: tree().choices(group) for group in ALONE}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for number in range(max(map(len, names.values()))):
        chosen = {group: of[number % len(of)] for group, of in names.items()}
        whole = tree().load([f"{group}={name}" for group, name in chosen.items()])
        for group, name in chosen.items():
            found[group, name] = OmegaConf.to_container(whole[group])  # pyright: ignore[reportArgumentType]
    return found


def choice(group: str, name: str) -> dict[str, Any]:
    """Return the keys of `group=name` with their values; `???` for those that a user must give."""
    return {str(key): value for key, value in _composed()[group, name].items() if key != "name"}
