"""Make an algorithm of its name and options. Defaults are those of its class, which the configuration files repeat."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from dsgd.engines.rules.suitable import why_not
from dsgd.runner.trust import offered
from dsgd.runner.values import ConfigError, build
from dsgd.topology import Topology
from dsgd.worker import Algorithm

DEFAULT, TREES = "ring", {"relay": "chain"}  # topologies: of all algorithms but those that choose another


def named_algorithm(
    name: str, options: Mapping[str, Any], topology: str | Mapping[str, Any] | None, nodes: int, seed: int
) -> Algorithm:
    """Return the algorithm that `algo=<name>` chooses, with these options. Raises ConfigError.

    topology: name of a topology, or its keys with `name`; None: ring, for relay chain. seed: of all that is drawn
    alike in all workers."""
    given = {"name": topology or TREES.get(name, DEFAULT)} if isinstance(topology, str | None) else dict(topology)
    shape = _build("topology", given.pop("name", DEFAULT), given)
    graph: Topology = shape.build(nodes, seed)
    algo = _build("algo", name, options, topology=graph, seed=seed)
    if reason := why_not(algo):
        raise ConfigError(f"algo={name} needs engine=dist, real processes of dsgd-run: {reason}")
    return algo


def _build(group: str, name: str, options: Mapping[str, Any], **given: Any) -> Any:
    """Return an instance of the class that a choice of the package names. given: fields that are no options."""
    targets = offered(group)
    if name not in targets:
        near = difflib.get_close_matches(name.lower(), targets, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{group} must be one of {', '.join(targets)}, got {name!r}{meant}")
    return build(None, {"_target_": targets[name], **options}, group, **given)
