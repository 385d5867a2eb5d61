"""Read a choice of a configuration group as Hydra composes it, with what its defaults list adds."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from dsgd.cli.compose import ConfigTree


def choice(group: str, name: str) -> dict[str, Any]:
    """Return the keys of `group=name` with their values; `???` for those that a user must give."""
    values = OmegaConf.to_container(ConfigTree().load([f"{group}={name}"])[group])
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items() if key != "name"}
